"""Refusals cost a small fixed amount of work and leave nothing behind."""

import contextlib
import gc
import sys
import tracemalloc

import pytest

from sglang_lp import wire
from sglang_lp.errors import PayloadRefused, RefusalReason
from sglang_lp.trust import Policy, Verifier
from sglang_lp.trust.verifier import MAX_CHARS
from support import constructions


@pytest.fixture
def verifier():
    return Verifier(Policy.default())


def refuse(verifier, payload):
    with pytest.raises(PayloadRefused):
        verifier.lookup(payload)


def tables(verifier):
    return {key: len(value) for key, value in vars(verifier).items() if hasattr(value, "__len__")}


def growth(work, times=20_000):
    """Bytes that are still held after many calls, beyond those after a few."""
    for i in range(200):
        work(i)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for i in range(200, times):
        work(i)
    gc.collect()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    return sum(entry.size_diff for entry in after.compare_to(before, "filename"))


# Construction 47: SGLang keeps every distinct payload for ever.
def test_distinct_refused_payloads_leave_nothing_behind(verifier):
    sizes = tables(verifier)

    def work(i):
        with contextlib.suppress(PayloadRefused):
            verifier.lookup(wire.encode(b"c" + i.to_bytes(4) + b"\nx\n."))

    assert growth(work) < 100_000
    assert tables(verifier) == sizes


# Constructions 40 and 43: endless spellings of one allowed class.
def test_spellings_of_an_allowed_class_leave_nothing_behind(verifier):
    sizes = tables(verifier)
    good = wire.encode(constructions.GOOD)

    def work(i):
        spaces = f"{i:015b}".replace("0", " ").replace("1", "\n")
        assert verifier.lookup(spaces + good).payload == good

    assert growth(work) < 100_000
    assert tables(verifier) == sizes


def test_what_clients_write_is_found_without_reading_it(verifier, monkeypatch):
    monkeypatch.setattr(wire, "decode", None)
    for allowed in verifier.allowed:
        for pickled in wire.references(*allowed.name.split(":")):
            for text in wire.spellings(pickled):
                assert verifier.lookup(text) is allowed


def calls(work):
    """Number of Python and C calls that a piece of work makes."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        work()
    except PayloadRefused:
        pass
    finally:
        sys.setprofile(None)
    return count


# Construction 36: a verifier that parses without a bound is itself the way to stop a server.
def test_no_refusal_makes_more_than_a_hundred_calls(verifier):
    payloads = dict(constructions.everything())
    worst = max(payloads, key=lambda name: calls(lambda: verifier.lookup(payloads[name])))

    assert calls(lambda: verifier.lookup(payloads[worst])) < 100, worst


@pytest.mark.parametrize("size", [MAX_CHARS + 1, 10_000_000])
def test_a_payload_beyond_the_cap_is_refused_unread(verifier, size):
    small = calls(lambda: verifier.lookup("{" * (MAX_CHARS + 1)))

    assert calls(lambda: verifier.lookup("{" * size)) == small
    with pytest.raises(PayloadRefused) as caught:
        verifier.lookup("{" * size)
    assert caught.value.reason is RefusalReason.TOO_LARGE
    assert caught.value.digest is None
    assert caught.value.size == size


def test_at_the_cap_a_payload_is_still_read(verifier):
    good = wire.encode(constructions.GOOD)

    assert verifier.lookup(good + " " * (MAX_CHARS - len(good))).payload == good
    refuse(verifier, good + " " * (MAX_CHARS - len(good) + 1))


def test_two_names_of_255_bytes_fit_within_the_cap():
    assert len(wire.payload_for("m" * 255, "n" * 255)) <= MAX_CHARS
