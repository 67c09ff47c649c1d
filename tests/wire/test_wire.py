"""Reading payload texts strictly, and explaining pickles without unpickling them."""

import hashlib
import json
import pickle
import pickletools

import dill
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp import builtins, wire
from sglang_lp.errors import PayloadRefused, RefusalReason
from sglang_lp.wire import Description, Kind
from sglang_lp.wire.payload import _python2_names
from sglang_lp.wire.serialization import find_class

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
MODULES = st.lists(NAMES, min_size=1, max_size=4).map(".".join)


@given(st.binary(max_size=200))
def test_encode_writes_what_json_writes_and_decode_reads_it(pickled):
    text = wire.encode(pickled)

    assert text == json.dumps({"callable": pickled.hex()})
    assert wire.decode(text, len(text)) == pickled
    for spelled in wire.spellings(pickled):
        assert json.loads(spelled) == {"callable": pickled.hex()}
        assert wire.decode(spelled, len(text)) == pickled
    assert wire.spellings(pickled) == (
        text,
        json.dumps({"callable": pickled.hex()}, separators=(",", ":")),
    )


@pytest.mark.parametrize(
    ("payload", "reason", "said"),
    [
        ("x" * 11, RefusalReason.TOO_LARGE, "at most 10 characters, got 11"),
        ("x" * 10, RefusalReason.MALFORMED, "got 10 characters of something else"),
        (None, RefusalReason.NOT_TEXT, "expected text, got null"),
        ({}, RefusalReason.NOT_TEXT, "expected text, got an object"),
        ([], RefusalReason.NOT_TEXT, "expected text, got a list"),
        (True, RefusalReason.NOT_TEXT, "expected text, got a truth value"),
        (1, RefusalReason.NOT_TEXT, "expected text, got a number"),
        (1.5, RefusalReason.NOT_TEXT, "expected text, got a number"),
        (b"", RefusalReason.NOT_TEXT, "expected text, got bytes"),
        pytest.param(
            object(), RefusalReason.NOT_TEXT, "expected text, got another type", id="object"
        ),
    ],
    ids=str,
)
def test_what_is_no_payload_is_refused_with_the_reason(payload, reason, said):
    with pytest.raises(PayloadRefused, match=said) as caught:
        wire.decode(payload, 10)
    assert caught.value.reason is reason
    assert caught.value.size == (len(payload) if isinstance(payload, str) else 0)
    assert caught.value.digest is None


def test_the_digest_is_of_the_decoded_pickle():
    pickled = wire.reference_pickle("m", "C")

    assert wire.digest(pickled) == hashlib.sha256(pickled).hexdigest()


@given(MODULES, NAMES, st.integers(0, 5))
def test_a_reference_is_described_by_its_names(module, name, protocol):
    pickled = wire.reference_pickle(module, name, protocol)

    assert wire.describe(pickled) == Description(Kind.REFERENCE, module, name)
    # An independent reader of pickles sees nothing but the two names in it.
    strings = [argument for _, argument, _ in pickletools.genops(pickled) if type(argument) is str]
    old = _python2_names(module, name) if protocol < 3 else (module, name)
    assert " ".join(strings) in {" ".join(old), module if module == name else ""}


@given(MODULES, NAMES, st.integers(0, 5), st.binary(min_size=1, max_size=9))
def test_a_reference_and_anything_more_is_not_described_as_one(module, name, protocol, more):
    pickled = wire.reference_pickle(module, name, protocol)

    assert wire.describe(pickled + more).kind is not Kind.REFERENCE
    assert wire.describe(pickled[:-1] + more + b".").kind is not Kind.REFERENCE


@pytest.mark.parametrize(
    ("module", "name"),
    [("", "C"), ("m", ""), ("m.", "C"), ("m", "A.B"), ("m-n", "C"), ("m", "1C"), ("m\n", "C")],
)
def test_what_are_no_names_has_no_reference(module, name):
    with pytest.raises(ValueError, match="expected the names") as caught:
        wire.reference_pickle(module, name)
    assert str(caught.value) == (
        f"expected the names of a module and of a class in it, got {module!a} and {name!a}"
    )


@pytest.mark.parametrize("protocol", [-1, 6, 255])
def test_there_is_no_other_protocol(protocol):
    with pytest.raises(ValueError, match=f"from 0 to 5, got {protocol}"):
        wire.reference_pickle("m", "C", protocol)


# A name is memoized, and both names are often one string in Python.
def test_a_class_named_as_its_module_has_both_pickles_that_python_writes():
    shared = b"\x80\x04\x95\x0a\0\0\0\0\0\0\0\x8c\x02ab\x94h\x00\x93\x94."
    apart = b"\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8c\x02ab\x94\x8c\x02ab\x94\x93\x94."

    assert wire.reference_pickle("ab", "ab") == shared
    assert {shared, apart} < set(wire.references("ab", "ab"))
    assert wire.describe(shared) == wire.describe(apart) == Description(Kind.REFERENCE, "ab", "ab")


def test_long_names_are_written_as_pickle_writes_them(monkeypatch):
    import sys
    import types

    for length in (255, 256, 300):
        name = "n" * length
        module = types.ModuleType("m" * length)
        cls = type(name, (), {"__module__": module.__name__})
        setattr(module, name, cls)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for protocol in range(6):
            written = wire.reference_pickle(module.__name__, name, protocol)
            assert written == pickle.dumps(cls, protocol)


def test_names_outside_ascii_have_the_protocols_that_can_hold_them():
    assert [pickled[1] for pickled in wire.references("m", "Gé")] == [3, 4, 5]
    with pytest.raises(UnicodeEncodeError):
        wire.reference_pickle("m", "Gé", 2)


# To an unpickler, protocol 2 of a module named Queue means the library's queue.
def test_names_that_an_unpickler_would_map_have_no_old_protocols():
    assert next(pickled[1] for pickled in wire.references("Queue", "Queue")) == 3
    assert len(list(wire.references("queue", "Queue"))) == 6
    assert len(list(wire.references("__builtin__", "X"))) < 6


@pytest.mark.parametrize("protocol", range(6))
def test_an_instance_is_described_as_one(protocol):
    import decimal

    assert wire.describe(dill.dumps(decimal.Context, protocol)).kind is Kind.REFERENCE
    cls = wire.reference_pickle("m", "C", protocol)
    assert wire.describe(cls[:-1] + b")\x81.").kind is Kind.INSTANCE
    assert wire.describe(b"ccopy_reg\n_reconstructor\np0\n(cm\nC\np1\n").kind is Kind.INSTANCE


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_described_as_code(protocol):
    local = type("Local", (), {"__module__": "__main__"})

    assert wire.describe(dill.dumps(local, protocol)).kind is Kind.BY_VALUE
    assert wire.describe(b"ccloudpickle.cloudpickle\n_make_skeleton_class\n").kind is Kind.BY_VALUE
    # To name the helper's module alone is no class.
    assert wire.describe(wire.reference_pickle("dill._dill", "loads")).kind is Kind.REFERENCE


@given(st.binary(max_size=2000))
def test_describing_and_listing_never_raise(pickled):
    assert wire.describe(pickled).kind in Kind
    assert len(wire.opcodes(pickled)) <= 201


def test_opcodes_are_listed_with_their_place_and_argument():
    assert wire.opcodes(wire.reference_pickle("m", "C", 2)) == [
        "    0 PROTO 2",
        "    2 GLOBAL 'm C'",
        "    7 BINPUT 0",
        "    9 STOP",
    ]


def test_what_follows_stop_what_breaks_and_what_is_too_long_is_said():
    good = wire.reference_pickle("m", "C", 2)

    assert wire.opcodes(good + b"xy")[-1] == "2 byte(s) follow STOP"
    assert wire.opcodes(b"N\xff") == ["    0 NONE", "broken after this: ValueError"]
    assert wire.opcodes(b"N" * 4 + b".", limit=3)[-2:] == ["    2 NONE", "... and more"]
    assert wire.opcodes(b"N" * 2 + b".", limit=3)[-1] == "    2 STOP"
    assert wire.opcodes(b".x") == ["    0 STOP", "1 byte(s) follow STOP"]
    assert wire.opcodes(b"N" * 201 + b".")[199:] == ["  199 NONE", "... and more"]


def test_arguments_are_shortened_and_escaped():
    listed = wire.opcodes(b"X" + (5000).to_bytes(4, "little") + b"\x1b\n" + b"y" * 4998 + b".")

    assert listed[0].startswith("    0 BINUNICODE '\\x1b\\n")
    assert len(listed[0]) < 100


def test_every_public_name_can_be_imported_and_no_other():
    assert [name for name in wire.__all__ if not hasattr(wire, name)] == []
    with pytest.raises(AttributeError, match=r"\.wire' has no attribute 'other'$"):
        _ = wire.other


def test_a_payload_names_a_class_or_one_that_derives_from_it():
    base, derived = (
        builtins.ThinkingBudgetLogitProcessor,
        builtins.Qwen3ThinkingBudgetLogitProcessor,
    )
    assert find_class(base, base.to_str()) is base
    assert find_class(base, derived.to_str()) is derived

    local = type("Local", (base,), {})
    for payload in (local.to_str(), builtins.DRYLogitProcessor.to_str()):
        with pytest.raises(PayloadRefused) as caught:
            find_class(base, payload)
        assert str(caught.value) == (
            "expected the payload of ThinkingBudgetLogitProcessor or of a subclass of it that is "
            "imported; resolve other payloads with sglang_lp.trust.Verifier"
        )
        assert caught.value.reason is RefusalReason.NOT_ALLOWED
