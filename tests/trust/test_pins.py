"""Code that the operator pinned by digest: unpickled once, after the match, and never else."""

import threading

import dill
import pytest

from sglang_lp import wire
from sglang_lp.errors import PayloadRefused, RefusalReason
from sglang_lp.trust import Pin, Policy, Verifier

pytestmark = pytest.mark.usefixtures("interrupts_are_shown")

GOOD_CODE = """
class Local:
    def __call__(self, logits, custom_param_list=None):
        return logits
"""


def by_value(source=GOOD_CODE, name="Local"):
    space = {"__name__": "__main__"}
    exec(source, space)
    return dill.dumps(space[name], recurse=True)


def pinned(*pickles):
    return Policy(
        pin=tuple(
            Pin(name=f"pin {i}", sha256=wire.digest(pickled), size=len(pickled))
            for i, pickled in enumerate(pickles)
        )
    )


@pytest.fixture
def loads(monkeypatch):
    """Count what is unpickled."""
    seen = []
    original = dill.loads

    def counted(pickled):
        seen.append(pickled)
        return original(pickled)

    monkeypatch.setattr(dill, "loads", counted)
    return seen


def reason_of(verifier, payload):
    with pytest.raises(PayloadRefused) as caught:
        verifier.lookup(payload)
    return caught.value.reason


def test_pinned_code_is_unpickled_once_and_then_found(loads):
    code = by_value()
    verifier = Verifier(pinned(code))
    assert loads == []

    found = verifier.lookup(wire.encode(code))
    assert found.processor.__name__ == "Local"
    assert found.name == "pin 0"
    assert found.payload == wire.encode(code)
    for text in wire.spellings(code):
        assert verifier.lookup(text) is found
    assert loads == [code]
    assert verifier.allowed[-1] is found


def test_code_that_differs_in_one_byte_from_a_pin_is_never_unpickled(loads):
    code = by_value()
    verifier = Verifier(pinned(code))
    for at in range(len(code)):
        other = code[:at] + bytes([code[at] ^ 1]) + code[at + 1 :]
        with pytest.raises(PayloadRefused):
            verifier.lookup(wire.encode(other))
    assert loads == []


def test_unpinned_code_is_refused_as_code(loads):
    verifier = Verifier(Policy.default())

    assert reason_of(verifier, wire.encode(by_value())) is RefusalReason.BY_VALUE
    assert loads == []


def test_the_digest_alone_is_not_enough_if_the_pin_names_another_size(loads):
    code = by_value()
    pin = Pin(name="p", sha256=wire.digest(code), size=len(code) + 1)

    with pytest.raises(PayloadRefused):
        Verifier(Policy(pin=(pin,))).lookup(wire.encode(code))
    assert loads == []


def test_pinned_code_may_be_longer_than_any_reference(loads):
    code = by_value(GOOD_CODE + f"    data = {'x' * 5000!r}\n")
    verifier = Verifier(pinned(code))

    found = verifier.lookup(wire.encode(code))
    assert verifier.lookup(wire.spellings(code)[1]) is found
    # Of the same length, so read, and of another digest, so not executed.
    assert reason_of(verifier, wire.encode(bytes(len(code)))) is RefusalReason.NOT_A_REFERENCE
    assert reason_of(verifier, wire.encode(code) + " ") is RefusalReason.TOO_LARGE
    assert loads == [code]


BROKEN = {
    "raises": "import builtins\nclass Local:\n def __reduce__(self): pass\n",
    "not a class": "Local = len",
    "no processor": "class Local: pass",
    "needs arguments": GOOD_CODE + "    def __init__(self, needed): pass\n",
    "exits": GOOD_CODE + "    def __init__(self): raise SystemExit(3)\n",
    "is interrupted": GOOD_CODE + "    def __init__(self): raise KeyboardInterrupt\n",
    "is cancelled": GOOD_CODE
    + "    def __init__(self):\n        import asyncio\n        raise asyncio.CancelledError\n",
    "cannot even be said": GOOD_CODE
    + "    class Unspeakable(BaseException):\n        def __str__(self): raise SystemExit\n"
    + "    def __init__(self): raise self.Unspeakable\n",
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=list(BROKEN))
def test_a_pin_that_does_not_load_is_refused_and_not_tried_again(source, loads, caplog):
    code = by_value(source)
    verifier = Verifier(pinned(code))
    before = verifier.allowed

    for _ in range(3):
        assert reason_of(verifier, wire.encode(code)) is RefusalReason.BROKEN_PIN
    assert loads == [code]
    assert verifier.allowed == before
    said = [record.getMessage() for record in caplog.records if "verifier" in record.name]
    assert len(said) == 1
    assert said[0].startswith("the pinned payload 'pin 0' failed to load: ")


def test_a_signal_while_a_pin_loads_ends_the_process():
    code = by_value(
        GOOD_CODE + "    def __init__(self):\n        import signal\n"
        "        signal.raise_signal(signal.SIGINT)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        Verifier(pinned(code)).lookup(wire.encode(code))


def test_a_pin_of_no_pickle_at_all_is_refused(loads):
    junk = b"\x80\x04this is no pickle"

    assert reason_of(Verifier(pinned(junk)), wire.encode(junk)) is RefusalReason.BROKEN_PIN


# Construction 49: an entry must not be used before its verification has finished.
def test_threads_that_bring_one_pin_at_once_unpickle_it_once(monkeypatch, loads):
    code = by_value()
    verifier = Verifier(pinned(code))
    counted = dill.loads
    started = threading.Barrier(8)
    found = []

    def slow(pickled):
        threading.Event().wait(0.05)
        return counted(pickled)

    def bring():
        started.wait()
        found.append(verifier.lookup(wire.encode(code)))

    monkeypatch.setattr(dill, "loads", slow)
    threads = [threading.Thread(target=bring) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(loads) == 1
    assert len(found) == 8
    assert all(each is found[0] for each in found)


def test_two_pins_are_two_classes(loads):
    one, two = by_value(), by_value(GOOD_CODE + "    other = True\n")
    verifier = Verifier(pinned(one, two))

    assert verifier.resolve(wire.encode(two)).other
    assert not hasattr(verifier.resolve(wire.encode(one)), "other")


def test_the_pin_of_a_payload_is_told_without_unpickling_it(loads):
    code = by_value()
    verifier = Verifier(pinned(code))

    for text in (*wire.spellings(code), f" {wire.encode(code)}\n"):
        assert verifier.pin(text) == Pin(name="pin 0", sha256=wire.digest(code), size=len(code))
    assert loads == []
    assert verifier.allowed == Verifier(Policy.default()).allowed


@pytest.mark.parametrize(
    "payload",
    [
        "DRYLogitProcessor",
        "sglang_lp.builtins:DRYLogitProcessor",
        wire.payload_for("sglang_lp.builtins", "DRYLogitProcessor"),
        wire.payload_for("sglang_lp.builtins", "DRYLogitProcessor") + " ",
        wire.payload_for("os", "system"),
        wire.encode(by_value(GOOD_CODE + "    other = True\n")),
    ],
    ids=["name", "full name", "reference", "spelled reference", "foreign reference", "code"],
)
def test_what_is_known_or_refused_has_no_pin(payload, loads):
    reference = wire.reference_pickle("sglang_lp.builtins", "DRYLogitProcessor")

    assert Verifier(pinned(by_value(), reference)).pin(payload) is None
    assert loads == []


def test_code_that_was_unpickled_has_no_pin_any_more_however_it_is_spelled(loads):
    code = by_value()
    verifier = Verifier(pinned(code))
    verifier.lookup(wire.encode(code))

    for text in (*wire.spellings(code), wire.encode(code) + " "):
        assert verifier.pin(text) is None


def test_a_pin_that_names_another_size_is_the_pin_of_nothing(loads):
    code = by_value()
    other = bytes(len(code) + 1)
    pins = pinned(other).pin[0], Pin(name="p", sha256=wire.digest(code), size=len(code) + 1)
    verifier = Verifier(Policy(pin=(*pins, Pin(name="q", sha256="a" * 64, size=len(code)))))

    assert verifier.pin(wire.encode(code)) is None
    assert verifier.pin(wire.encode(other)) == pins[0]
    assert reason_of(verifier, wire.encode(code)) is RefusalReason.BY_VALUE
    assert loads == []


@pytest.mark.parametrize(
    "payload", [None, 3, "", "{}", '{"callable": "8"}', "os:system", "N" * 1281]
)
def test_what_is_no_payload_is_refused_as_by_the_lookup(payload):
    verifier = Verifier(pinned(by_value()))
    with pytest.raises(PayloadRefused) as caught:
        verifier.pin(payload)

    assert caught.value.reason is reason_of(verifier, payload)
