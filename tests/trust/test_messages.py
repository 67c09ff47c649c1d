"""The words of every refusal and every policy error: what was expected, what came, what to do."""

import logging

import dill
import pytest

from sglang_lp import wire
from sglang_lp.errors import PayloadRefused, PolicyError, RefusalReason
from sglang_lp.importing import parse_entry
from sglang_lp.policy.stock import Stock
from sglang_lp.trust import Limits, Pin, Policy, Verifier
from sglang_lp.trust.allow_list import MAX_PIN_BYTES
from support.constructions import STOCK

EXPECTED = "custom_logit_processor: expected a class that this server allows, got "


def code(**members):
    return dill.dumps(type("Local", (), {"__module__": "__main__", **members}))


def refusal(payload, policy=None):
    with pytest.raises(PayloadRefused) as caught:
        Verifier(policy or Policy.default()).lookup(payload)
    return caught.value


@pytest.mark.parametrize(
    ("pickled", "reason", "came", "todo"),
    [
        (
            wire.reference_pickle("os", "system"),
            RefusalReason.NOT_ALLOWED,
            "the class 'os:system'",
            "ask the operator to allow it in the server's policy",
        ),
        (
            wire.reference_pickle("m" * 119, "C"),
            RefusalReason.NOT_ALLOWED,
            f"the class '{'m' * 119}...",
            "ask the operator to allow it in the server's policy",
        ),
        (
            wire.reference_pickle(STOCK, "ThinkingBudgetLogitProcessor"),
            RefusalReason.NOT_ALLOWED,
            f"the class '{STOCK}:ThinkingBudgetLogitProcessor'",
            (
                "it is a base class without token ids: use the class of your model, or "
                "sglang_lp.builtins:ThinkingBudgetLogitProcessor, which takes them as parameters"
            ),
        ),
        (
            wire.reference_pickle(STOCK, "CustomLogitProcessor"),
            RefusalReason.NOT_ALLOWED,
            f"the class '{STOCK}:CustomLogitProcessor'",
            "ask the operator to allow it in the server's policy",
        ),
        (
            wire.reference_pickle("m", "ThinkingBudgetLogitProcessor"),
            RefusalReason.NOT_ALLOWED,
            "the class 'm:ThinkingBudgetLogitProcessor'",
            "ask the operator to allow it in the server's policy",
        ),
        (
            wire.reference_pickle("m", "C")[:-1] + b")\x81.",
            RefusalReason.INSTANCE,
            "an instance, not a class",
            "send the class: today's to_str() is a class method",
        ),
        (
            code(),
            RefusalReason.BY_VALUE,
            "code: a class by value",
            (
                "move the class to a module that is installed on the server and ask the operator "
                "to allow it, or to pin this payload"
            ),
        ),
        (
            b"N.",
            RefusalReason.NOT_A_REFERENCE,
            "something other than a class by reference",
            "send a top-level class of an importable module",
        ),
    ],
)
def test_a_well_formed_payload_that_is_refused(pickled, reason, came, todo):
    text = wire.encode(pickled)
    error = refusal(text)
    sha256 = wire.digest(pickled)

    assert str(error) == (f"{EXPECTED}{came} ({len(pickled)} bytes, sha256 {sha256[:12]}); {todo}")
    assert (error.reason, error.digest, error.size) == (reason, sha256, len(text))


def test_a_denied_stock_class():
    name = "Qwen3ThinkingBudgetLogitProcessor"
    pickled = wire.reference_pickle(STOCK, name)
    error = refusal(wire.encode(pickled), Policy(stock=Stock.DENY))

    assert str(error) == (
        f"{EXPECTED}the class '{STOCK}:{name}' ({len(pickled)} bytes, sha256 "
        f"{wire.digest(pickled)[:12]}); use the class of the same name in sglang_lp.builtins"
    )
    assert error.reason is RefusalReason.DENIED
    # The same name in another module is just another class.
    other = refusal(wire.payload_for("m", name), Policy(stock=Stock.DENY))
    assert other.reason is RefusalReason.NOT_ALLOWED


def test_a_name_that_is_not_allowed():
    error = refusal("os:system")

    assert str(error) == (
        "custom_logit_processor: expected what a processor's to_str() returns, or the name of a "
        "class that this server allows, got 'os:system'; correct the name, or ask the operator "
        "to allow it"
    )
    assert (error.reason, error.digest, error.size) == (RefusalReason.UNKNOWN_NAME, None, 9)
    assert refusal("N").reason is RefusalReason.UNKNOWN_NAME
    assert refusal("N" * 1280).reason is RefusalReason.UNKNOWN_NAME
    assert refusal("N" * 1281).reason is RefusalReason.TOO_LARGE


def test_text_that_is_no_payload():
    error = refusal("{}")
    assert str(error) == (
        'custom_logit_processor: expected {"callable": "<lower-case hex>"} with that key and no '
        "other, got 2 characters of something else; send what the processor's to_str() returns, "
        "unchanged"
    )
    error = refusal("{" * 1281)
    assert str(error) == (
        "custom_logit_processor: expected at most 1280 characters, got 1281; a class of an "
        "importable module takes far less, and code is accepted only if the operator pinned it"
    )


def test_a_broken_pin(caplog):
    pickled = code(__init__=None)
    sha256 = wire.digest(pickled)
    policy = Policy(pin=(Pin(name="trial", sha256=sha256, size=len(pickled)),))
    with caplog.at_level(logging.ERROR, logger="sglang_lp.trust.verifier"):
        error = refusal(wire.encode(pickled), policy)

    assert str(error) == (
        f"custom_logit_processor: the pinned payload {sha256[:12]} does not load on this server; "
        "its log says why. Ask the operator to pin a payload made with the server's versions of "
        "Python and dill"
    )
    assert (error.digest, error.size) == (sha256, len(wire.encode(pickled)))
    assert "pin trial: expected a logit processor" in caplog.text


def policy_error(make):
    with pytest.raises(PolicyError) as caught:
        make()
    return str(caught.value)


def test_entries():
    say = 'expected "package.module:Class", got '
    assert policy_error(lambda: parse_entry("x")) == f"entry: {say}'x'"
    assert policy_error(lambda: parse_entry("x:A.B", "allow[2]")) == (
        f"allow[2]: {say}'x:A.B'; a nested class has no fixed payload"
    )
    assert policy_error(lambda: parse_entry("a" * 200)) == f"entry: {say}'{'a' * 119}..."


def test_pins():
    for sha256 in ("A" * 64, "a" * 65):
        assert policy_error(lambda sha256=sha256: Pin(name="p", sha256=sha256, size=1)) == (
            f"sha256: expected 64 lower-case hex digits, got '{sha256}'"
        )
    assert policy_error(lambda: Pin(name="p", sha256="a" * 500, size=1)) == (
        f"sha256: expected 64 lower-case hex digits, got '{'a' * 69}..."
    )
    assert Pin(name="p", sha256="a" * 64, size=1).size == 1
    assert Pin(name="p", sha256="a" * 64, size=MAX_PIN_BYTES).size == MAX_PIN_BYTES


def test_too_many_and_twice():
    pins = [Pin(name="p", sha256=f"{i:064x}", size=1) for i in range(65)]
    assert policy_error(lambda: Policy(pin=tuple(pins))) == "pin: expected at most 64 pins, got 65"
    assert policy_error(lambda: Policy(pin=(pins[0], pins[0]))) == (
        "pin: expected each sha256 once, got one twice"
    )


def test_limits_and_stock():
    assert Limits(logged_refusals_per_minute=1).logged_refusals_per_minute == 1
    assert policy_error(lambda: Limits(logged_refusals_per_minute=0)) == (
        "logged_refusals_per_minute: expected 1 or more, got 0"
    )
    assert policy_error(lambda: Policy(stock="dney")) == (
        "stock: expected upgrade, allow, deny, got 'dney'"
    )
    assert len(Verifier(Policy(stock="deny", builtins=False)).allowed) == 0


NO_PROCESSOR = (
    "expected a logit processor, a class with __call__(self, logits, custom_param_list); "
    "derive it from sglang_lp.processor.LogitProcessor"
)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "no_such_package:C",
            (
                "importing no_such_package failed: ModuleNotFoundError: No module named "
                "'no_such_package'; install the package in the server's environment, or correct "
                "the name"
            ),
        ),
        ("json:Absent", "json has no Absent; correct the name"),
        (
            "__main__:C",
            (
                "expected a class of a module that can be imported; a class of __main__ travels as "
                "code, so move it to a module, or pin a payload"
            ),
        ),
        ("json:loads", "expected a class, got 'function'"),
        (
            "decimal:Decimal",
            NO_PROCESSOR,
        ),
        (
            "string:Template",
            NO_PROCESSOR,
        ),
        (
            "functools:partialmethod",
            NO_PROCESSOR,
        ),
        (
            "sglang_lp.processor:LogitProcessor",
            "expected a class that does something; it overrides neither edit() nor __call__()",
        ),
        (
            "sglang_lp.builtins.words.forced_sequence:ForcedSequenceLogitProcessor",
            (
                "is the class sglang_lp.builtins:ForcedSequenceLogitProcessor under another name; "
                "allow it under its own, which is what payloads carry"
            ),
        ),
    ],
)
def test_classes(entry, said):
    assert policy_error(lambda: Verifier(Policy(allow=(entry,)))) == (
        f"policy in code: allow[0]: {entry}: {said}"
    )


def test_files(tmp_path):
    path = tmp_path / "p.toml"
    assert policy_error(lambda: Policy.from_toml(path)) == (
        f"policy {path}: cannot be read: No such file or directory"
    )
    path.write_bytes(b"#" * (1 << 20) + b"#")
    assert policy_error(lambda: Policy.from_toml(path)) == (
        f"policy {path}: expected at most 1048576 bytes"
    )
    path.write_bytes(b"#" * (1 << 20))
    assert Policy.from_toml(path).source == str(path)
    path.write_text("zzz = 1\n")
    assert policy_error(lambda: Policy.from_toml(path)) == (
        f"policy {path}: unknown key 'zzz'; "
        "expected one of defaults, always, profiles, ceilings, may_resume, effort, "
        "fields, structured, builtins, stock, allow, pin, adapt, limits, catalogues, watermark"
    )
    path.write_text("stock = 'yes'\n")
    assert policy_error(lambda: Policy.from_toml(path)) == (
        f"policy {path}: stock: expected one of upgrade, allow, deny, got 'yes'"
    )
