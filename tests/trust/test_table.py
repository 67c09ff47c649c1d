"""Accepted if and only if in the table, whatever a request holds."""

import json
import pickle

import dill
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp import builtins, wire
from sglang_lp.errors import PayloadRefused
from sglang_lp.trust import Policy, Verifier
from support import constructions

VERIFIER = Verifier(Policy.default())
GOOD = builtins.DisallowedTokensLogitsProcessor

#: The independent oracle: from pickled bytes to the class, from what Python's pickle writes.
PICKLES = {
    pickle.dumps(getattr(builtins, name), protocol): getattr(builtins, name)
    for name in builtins.__all__
    for protocol in range(6)
}


def expected(text):
    """The class that a payload names, by a JSON parser and Python's own pickles."""
    for name in builtins.__all__:
        if text in {name, f"sglang_lp.builtins:{name}"}:
            return getattr(builtins, name)
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(pairs, list) and len(pairs) == 1 and isinstance(pairs[0], tuple)):
        return None
    key, value = pairs[0]
    # Spelled without escapes, and in lower case.
    if key != "callable" or not isinstance(value, str) or f'"{value}"' not in text:
        return None
    if '"callable"' not in text or set(value) - set("0123456789abcdef") or len(value) % 2:
        return None
    return PICKLES.get(bytes.fromhex(value))


def resolved(text):
    try:
        return VERIFIER.resolve(text)
    except PayloadRefused:
        return None


def edits(pickled):
    """Yield every truncation, bit flip, deletion and insertion of one byte."""
    for at in range(len(pickled)):
        yield pickled[:at]
        yield pickled[:at] + pickled[at + 1 :]
        for bit in range(8):
            yield pickled[:at] + bytes([pickled[at] ^ 1 << bit]) + pickled[at + 1 :]
    for at in range(len(pickled) + 1):
        for byte in range(256):
            yield pickled[:at] + bytes([byte]) + pickled[at:]


# Construction 30.
@pytest.mark.parametrize("protocol", range(6))
def test_no_edit_of_one_byte_is_accepted(protocol):
    pickled = pickle.dumps(GOOD, protocol)
    others = [p for p in edits(pickled) if p not in PICKLES]

    assert len(others) > 10_000
    assert [p for p in others if resolved(wire.encode(p)) is not None] == []
    assert resolved(wire.encode(pickled)) is GOOD


# One byte apart: protocols 4 and 5 of a class are both in the table.
def test_every_protocol_is_accepted_and_means_what_every_unpickler_says():
    for pickled, cls in PICKLES.items():
        assert VERIFIER.resolve(wire.encode(pickled)) is cls
        assert pickle.loads(pickled) is cls
        assert pickle._loads(pickled) is cls
        assert dill.loads(pickled) is cls


SPACE = st.text(" \t\n\r", max_size=5)


@given(cls=st.sampled_from(sorted(builtins.__all__)), spaces=st.tuples(*[SPACE] * 6))
def test_white_space_between_tokens_never_makes_another_canonical_text(cls, spaces):
    hexed = f'"{wire.reference_pickle("sglang_lp.builtins", cls).hex()}"'
    tokens = ["", "{", '"callable"', ":", hexed, "}"]
    text = "".join(token + space for token, space in zip(tokens, spaces, strict=True))

    found = VERIFIER.lookup(text)
    assert found.processor is getattr(builtins, cls)
    assert found.payload == getattr(builtins, cls).to_str()


@st.composite
def mutated(draw):
    """A valid text with a few cuts, insertions, swaps and repetitions."""
    name = draw(st.sampled_from(sorted(builtins.__all__)))
    protocol = draw(st.integers(0, 5))
    text = wire.encode(pickle.dumps(getattr(builtins, name), protocol))
    if draw(st.booleans()):
        text = draw(st.sampled_from([name, f"sglang_lp.builtins:{name}"]))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        upto = draw(st.integers(at, min(len(text), at + 4)))
        text = text[:at] + draw(st.text(max_size=3) | st.just(text[at:upto] * 2)) + text[upto:]
    return text


@given(mutated() | st.text() | st.builds(wire.encode, st.binary(max_size=80)))
@example('{"callable": "' + pickle.dumps(GOOD).hex().upper() + '"}')
@example('{"call\\u0061ble": "' + pickle.dumps(GOOD).hex() + '"}')
def test_accepted_if_and_only_if_in_the_table(text):
    assert resolved(text) is expected(text)


@given(st.recursive(st.none() | st.text() | st.integers() | st.binary(), st.lists))
def test_whatever_is_passed_it_is_refused_or_resolved(value):
    assert resolved(value) in {None, *PICKLES.values()}


def test_the_oracle_refuses_every_construction_too():
    for name, payload in constructions.everything():
        if type(payload) is str:
            assert expected(payload) is None, name


# Constructions 45 and 19: verified and used is one object, whatever a name means by now.
def test_a_class_is_the_one_of_start_up_even_if_its_name_is_rebound(monkeypatch):
    class Other:
        pass

    monkeypatch.setattr(builtins, GOOD.__name__, Other)
    assert VERIFIER.resolve(wire.payload_for("sglang_lp.builtins", GOOD.__name__)) is GOOD


# Construction 48: a client cannot choose a string that becomes a key of a batch.
def test_there_are_as_many_canonical_texts_as_allowed_classes():
    payloads = {VERIFIER.lookup(wire.encode(pickled)).payload for pickled in PICKLES}

    assert payloads == {allowed.payload for allowed in VERIFIER.allowed}
    assert len(payloads) == len(builtins.__all__)
    for payload in payloads:
        assert VERIFIER.lookup(payload).payload == payload
