"""A policy is read and checked in full at start-up; a mistake says where it is and what to do."""

import re
import sys
import types
from abc import ABC, abstractmethod

import msgspec
import pytest

from sglang_lp import builtins, trust, wire
from sglang_lp.errors import PayloadRefused, PolicyError, RefusalReason
from sglang_lp.importing import parse_entry
from sglang_lp.policy import file
from sglang_lp.policy.stock import Stock
from sglang_lp.processor import LogitProcessor
from sglang_lp.trust import Limits, Pin, Policy, Verifier
from sglang_lp.trust.allow_list import MAX_PIN_BYTES, MAX_PINS
from support.constructions import STOCK, STOCK_NAMES

SHA = "a" * 64


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "policy.toml"

    def read(text):
        path.write_text(text, encoding="utf-8")
        return Policy.from_toml(path)

    return read


@pytest.fixture
def module(monkeypatch):
    """A module of the operator's, with classes that can and cannot be served."""
    made = types.ModuleType("operators_own")
    monkeypatch.setitem(sys.modules, "operators_own", made)

    def add(cls, name=None):
        cls.__module__, cls.__qualname__ = "operators_own", cls.__name__
        setattr(made, name or cls.__name__, cls)
        return cls

    return add


class Plain:
    def __call__(self, logits, custom_param_list=None):
        return logits


def test_an_empty_file_is_the_default_policy(read):
    policy = read("")

    assert msgspec.structs.replace(policy, source="by default") == Policy.default()
    assert policy.builtins
    assert policy.stock is Stock.UPGRADE
    assert policy.limits.logged_refusals_per_minute == 60


def test_every_key_is_read(read):
    policy = read(
        'builtins = false\nstock = "deny"\nallow = ["a.b:C"]\n'
        f'[[pin]]\nname = "p"\nsha256 = "{SHA}"\nsize = 9\n'
        "[limits]\nlogged_refusals_per_minute = 5\n"
    )

    assert policy.source.endswith("policy.toml")
    assert msgspec.structs.replace(policy, source="x") == Policy(
        builtins=False,
        stock=Stock.DENY,
        allow=("a.b:C",),
        pin=(Pin(name="p", sha256=SHA, size=9),),
        limits=Limits(logged_refusals_per_minute=5),
        source="x",
    )


PIN = f'[[pin]]\nname = "p"\nsha256 = "{SHA}"\nsize = 9\n'


def test_a_value_of_the_wrong_type_is_told_in_words(read):
    with pytest.raises(PolicyError, match=r"builtins: expected true or false, got 1$"):
        read("builtins = 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "built_ins = true",
            "policy.toml: unknown key 'built_ins'; expected one of defaults, always",
        ),
        ("builtin = true", "did you mean 'builtins'?"),
        ('source = "x"', "unknown key 'source'; expected one of defaults, always"),
        ("[effort]\nlowest = 1", "effort: no request can send 'lowest'"),
        ("[effort]\nanswer_room = -1", "answer_room: expected 0 or more, got -1"),
        (
            "[defaults]\nprocessor = 'A'\nthinking_budget = 1",
            (
                "defaults: unknown key 'thinking_budget'; expected one of processor, params; a "
                "parameter of the processor goes into params"
            ),
        ),
        ("[[always]]\nparams = {}", "always[0]: expected a table with processor, got none"),
        (
            "[[always]]\nprocessor = 'A'\nparam = {}",
            "unknown key 'param'; expected one of processor, params; did you mean 'params'?",
        ),
        ("[profiles.a]\nprocessors = []", "profiles.a.processors: expected one or more, got none"),
        ("[profiles.'a b']\nprocessors = []", "expected a name like an identifier, got 'a b'"),
        ("[profiles.a]\nmay = []", "expected one of processors, may_set"),
        (
            "[ceilings]\nb = {at_most = 1}\na = {at_most = 'x'}",
            "ceilings.a.at_most: expected a number",
        ),
        (
            (
                "[profiles.b]\nprocessors = [{processor = 'A'}]\n"
                "[profiles.a]\nprocessors = [{processor = 'A'}, {processor = 3}]"
            ),
            "profiles.a.processors[1].processor: expected a text, got 3",
        ),
        (
            "adapt = [{class = 'a:B', limits = {k = -1}}]",
            "adapt[0].limits.k: expected a whole number",
        ),
        ("[effort]\nlow = 'x'", "effort.low: expected true or false or a whole number, got 'x'"),
        ("' - at `$.pin[0]`' = 1", "unknown key"),
        ("[ceilings]\na = {at_most = nan}", "at_most: expected a finite number, got nan"),
        (
            f"[ceilings]\na = {{at_most = 1{'0' * 400}}}",
            "at_most: expected a finite number, got 10",
        ),
        ("[ceilings]\na = {most = 3}", "ceilings.a: unknown key 'most'; expected one of at_most"),
        (
            "[ceilings]\nthinking_budget = 3",
            "ceilings.thinking_budget: expected a table with at_most, above, got 3",
        ),
        (
            "[ceilings]\na = {at_most = 3, above = 'cut'}",
            "ceilings.a.above: expected one of lower, refuse, got 'cut'",
        ),
        (
            "[limits]\n' - at `$.pin[0]`' = 1",
            "limits: unknown key ' - at `$.pin[0]`'; expected one of logged_refusals",
        ),
        ('stock = "yes"', "stock: expected one of upgrade, allow, deny, got 'yes'"),
        ('allow = "a:B"', "allow: expected a list, got 'a:B'"),
        ("allow = [1]", "allow[0]: expected a text, got 1"),
        ('allow = ["a:B", "os.system"]', 'allow[1]: expected "package.module:Class"'),
        ('allow = ["a:B.C"]', "a nested class has no fixed payload"),
        ('allow = ["a b:C"]', "allow[0]: expected"),
        ("[[pin]]", "pin[0]: expected a table with name, got none; its keys: name, sha256, size"),
        (PIN.replace("a" * 64, "A" * 64), "sha256: expected 64 lower-case hex digits"),
        (PIN.replace("a" * 64, "a" * 63), "sha256: expected 64 lower-case hex digits"),
        (PIN.replace("a" * 64, "a" * 64 + "\\n"), "sha256: expected 64 lower-case hex digits"),
        (PIN.replace("9", "0"), f"size: expected 1 to {MAX_PIN_BYTES} bytes, got 0"),
        (PIN.replace("9", "65537"), "size: expected 1 to 65536 bytes, got 65537"),
        (PIN + PIN, "pin: expected each sha256 once, got one twice"),
        (PIN + "digest = 1", "pin[0]: unknown key 'digest'; expected one of name, sha256, size"),
        ("[limits]\nlogged_refusals_per_minute = 0", "expected 1 or more, got 0"),
        ("[limits]\nlogged_refusals = 1", "expected one of logged_refusals_per_minute"),
        ("allow = [", "policy.toml: "),
        ("builtins = true\nbuiltins = true", "policy.toml: "),
    ],
)
def test_a_mistake_in_the_file_says_where_and_what(read, text, said):
    with pytest.raises(PolicyError, match=re.escape(said)) as caught:
        read(text)
    assert "policy.toml" in str(caught.value)


def test_too_many_pins_are_refused(read):
    pins = [PIN.replace("a" * 64, f"{i:064x}") for i in range(MAX_PINS + 1)]

    assert len(read("".join(pins[:-1])).pin) == MAX_PINS
    with pytest.raises(PolicyError, match=f"at most {MAX_PINS} pins, got {MAX_PINS + 1}"):
        read("".join(pins))


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"# " + b"x" * (1 << 20)])
def test_a_file_that_is_no_policy_is_refused(tmp_path, raw):
    path = tmp_path / "policy.toml"
    path.write_bytes(raw)

    with pytest.raises(PolicyError, match=r"policy\.toml"):
        Policy.from_toml(path)


def test_a_missing_file_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(PolicyError, match="cannot be read"):
            Policy.from_toml(path)


def test_an_entry_is_a_module_and_a_class():
    assert parse_entry("a.b.c:D") == ("a.b.c", "D")
    for wrong in ("", ":", "a:", ":B", "a", "a.b", "a..b:C", "a:B:C", "a-b:C", "a:B ", "a:B\n"):
        with pytest.raises(PolicyError, match="expected"):
            parse_entry(wrong)


def test_a_class_that_the_operator_allows_is_served_under_its_full_name(module):
    cls = module(type("Own", (Plain,), {}))
    verifier = Verifier(Policy(allow=("operators_own:Own",)))

    assert verifier.resolve(wire.payload_for("operators_own", "Own")) is cls
    assert verifier.resolve("operators_own:Own") is cls
    with pytest.raises(PayloadRefused):
        verifier.resolve("Own")
    assert [allowed.name for allowed in verifier.allowed][-1] == "operators_own:Own"


@pytest.mark.parametrize("work", ["edit", "__call__", "serving"])
def test_a_subclass_of_the_toolkits_base_that_does_something_is_a_processor(module, work):
    own = module(type("Own", (LogitProcessor,), {work: lambda self, one, other=None: one}))

    assert Verifier(Policy(allow=("operators_own:Own",))).resolve("operators_own:Own") is own


def _abstract():
    class Abstract(ABC):
        @abstractmethod
        def __call__(self, logits, custom_param_list=None): ...

        @abstractmethod
        def other(self): ...

    return Abstract


def _needy(self, argument):
    pass


def _raising(self):
    raise RuntimeError("no device")


NO_PROCESSORS = {
    "bare": (type("Bare", (), {}), "expected a logit processor"),
    "function": (lambda logits, params: logits, "expected a class, got 'function'"),
    "instance": (Plain(), "expected a class, got 'Plain'"),
    "module": (types, "expected a class, got 'module'"),
    "one argument": (type("X", (), {"__call__": lambda self, a: a}), "cannot be called so"),
    "three arguments": (type("X", (), {"__call__": lambda s, a, b, c: a}), "cannot be called so"),
    "not callable": (type("X", (), {"__call__": None}), "expected a logit processor"),
    "abstract": (_abstract(), "it does not override __call__, other"),
    "needy": (type("X", (Plain,), {"__init__": _needy}), "can be made without arguments"),
    "idle": (type("X", (LogitProcessor,), {}), "it overrides neither edit() nor __call__()"),
    "exiting": (type("X", (Plain,), {"__init__": sys.exit}), "without arguments, as SGLang does"),
    "raising": (type("X", (Plain,), {"__init__": _raising}), "RuntimeError: no device"),
}


@pytest.mark.parametrize(("found", "said"), NO_PROCESSORS.values(), ids=list(NO_PROCESSORS))
def test_what_is_not_a_processor_stops_the_server(module, found, said):
    if isinstance(found, type):
        module(found, "X")
        found.__qualname__ = found.__name__ = "X"
    else:
        sys.modules["operators_own"].X = found
    with pytest.raises(PolicyError, match=re.escape(said)) as caught:
        Verifier(Policy(allow=("operators_own:X",)))
    assert "policy in code: allow[0]: operators_own:X: " in str(caught.value)


def test_a_class_that_does_not_pickle_by_reference_stops_the_server(module):
    import copyreg

    meta = type("Meta", (type,), {})
    copyreg.pickle(meta, lambda cls: (dict, ()))
    try:
        module(meta("Odd", (Plain,), {}))
        with pytest.raises(PolicyError) as caught:
            Verifier(Policy(allow=("operators_own:Odd",)))
        assert str(caught.value) == (
            "policy in code: allow[0]: operators_own:Odd: expected a class that pickles by "
            "reference; a copyreg reducer of its metaclass makes something else of it"
        )
    finally:
        del copyreg.dispatch_table[meta]


# Construction 19: a class under the name of another module, or another name.
def test_a_class_is_allowed_under_its_own_name_only(module):
    module(type("Own", (Plain,), {}), "Alias")
    with pytest.raises(PolicyError, match="is the class operators_own:Own under another name"):
        Verifier(Policy(allow=("operators_own:Alias",)))
    entry = "sglang_lp.builtins.tokens.disallowed_tokens:DisallowedTokensLogitsProcessor"
    with pytest.raises(PolicyError, match=r"is the class sglang_lp[.]builtins:Disallowed"):
        Verifier(Policy(allow=(entry,)))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("no_such_package.module:Own", "importing no_such_package.module failed"),
        ("module_that_exits:Own", "importing module_that_exits failed: SystemExit: 3"),
        ("operators_own:Absent", "operators_own has no Absent"),
        ("__main__:Own", "a class of __main__ travels as code"),
        (f"{STOCK}:DisallowedTokensLogitsProcessor", 'by stock = "allow"'),
    ],
)
def test_a_class_that_cannot_be_had_stops_the_server(module, entry, said, monkeypatch, tmp_path):
    module(Plain, "Plain")
    (tmp_path / "module_that_exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PolicyError, match=re.escape(said)) as caught:
        Verifier(Policy(allow=("sglang_lp.builtins:ForcedSequenceLogitProcessor", entry)))
    assert "allow[1]" in str(caught.value)


@pytest.mark.parametrize("file", ["operators_away.py", "operators_away/rules.py"])
def test_a_module_in_the_folder_is_not_imported_and_the_error_says_how(file, monkeypatch, tmp_path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    places = vars(sys)["path"]
    monkeypatch.setattr(sys, "path", [path for path in places if path not in {"", "."}])

    def said(entry):
        with pytest.raises(PolicyError) as caught:
            Verifier(Policy(allow=(entry,)))
        return str(caught.value).partition("; ")[2]

    elsewhere = "install the package in the server's environment, or correct the name"
    assert said("operators_away.rules:Own") == elsewhere
    monkeypatch.chdir(tmp_path)
    assert said("operators_away.rules:Own") == (
        "operators_away is in this folder, where Python does not look: install it (pip install -e "
        ".), or set PYTHONPATH=. here and for the server"
    )
    assert said("operators_off.rules:Own") == elsewhere


def test_the_errors_of_a_verifier_name_the_file(read):
    with pytest.raises(PolicyError, match=r"policy\.toml: allow\[0\]: no_such:X"):
        Verifier(read('allow = ["no_such:X"]'))


def test_without_builtins_none_is_served_by_name_or_payload():
    verifier = Verifier(Policy(builtins=False, stock=Stock.DENY))

    assert verifier.allowed == ()
    for name in builtins.__all__:
        for payload in (name, f"sglang_lp.builtins:{name}", getattr(builtins, name).to_str()):
            with pytest.raises(PayloadRefused):
                verifier.resolve(payload)


@pytest.mark.parametrize("with_builtins", [True, False])
@pytest.mark.parametrize("name", STOCK_NAMES)
def test_upgraded_a_stock_payload_runs_this_toolkits_class(name, with_builtins):
    verifier = Verifier(Policy(builtins=with_builtins))
    for pickled in wire.references(STOCK, name):
        found = verifier.lookup(wire.encode(pickled))
        assert found.processor is getattr(builtins, name)
        spoken = "sglang_lp.builtins" if with_builtins else STOCK
        assert found.payload == wire.payload_for(spoken, name)
        # What goes on into the batch is accepted by the next gate as the very same.
        assert verifier.lookup(found.payload) is found
    assert verifier.lookup(f"{STOCK}:{name}") is found


def test_denied_a_stock_payload_is_refused_with_the_way_out():
    verifier = Verifier(Policy(stock=Stock.DENY))
    for name in STOCK_NAMES:
        with pytest.raises(PayloadRefused, match="class of the same name in sglang_lp") as caught:
            verifier.resolve(wire.payload_for(STOCK, name))
        assert caught.value.reason is RefusalReason.DENIED


@pytest.mark.parametrize("stock", [Stock.UPGRADE, Stock.DENY])
def test_sglangs_base_without_token_ids_is_refused_with_advice(stock):
    with pytest.raises(PayloadRefused, match="it is a base class without token ids") as caught:
        Verifier(Policy(stock=stock)).resolve(
            wire.payload_for(STOCK, "ThinkingBudgetLogitProcessor")
        )
    assert caught.value.reason is RefusalReason.NOT_ALLOWED


def test_allowed_a_stock_payload_runs_the_class_of_that_module(monkeypatch):
    module = types.ModuleType(STOCK)
    monkeypatch.setitem(sys.modules, STOCK, module)
    for name in STOCK_NAMES:
        setattr(module, name, type(name, (Plain,), {"__module__": STOCK}))
    verifier = Verifier(Policy(stock=Stock.ALLOW))

    for name in STOCK_NAMES:
        found = verifier.lookup(wire.payload_for(STOCK, name))
        assert found == (f"{STOCK}:{name}", getattr(module, name), wire.payload_for(STOCK, name))
    delattr(module, STOCK_NAMES[0])
    with pytest.raises(PolicyError, match=f"policy in code: stock: {STOCK}:{STOCK_NAMES[0]}: "):
        Verifier(Policy(stock=Stock.ALLOW))


def test_a_builtin_that_is_not_there_stops_the_server(monkeypatch):
    monkeypatch.setattr(builtins, "__all__", ["Absent"])
    with pytest.raises(PolicyError) as caught:
        Verifier(Policy.default())
    assert str(caught.value) == (
        "policy by default: builtins: sglang_lp.builtins:Absent: sglang_lp.builtins has no "
        "Absent; correct the name"
    )


def test_allowed_a_stock_payload_runs_sglangs_own_class():
    from sglang.srt.sampling import custom_logit_processor as stock

    verifier = Verifier(Policy(stock=Stock.ALLOW))
    for name in STOCK_NAMES:
        cls = getattr(stock, name)
        assert verifier.resolve(cls.to_str()) is cls
        assert verifier.lookup(cls.to_str()).payload == cls.to_str()
    with pytest.raises(PayloadRefused):
        verifier.resolve(stock.ThinkingBudgetLogitProcessor.to_str())


MODEL_CLASS = "sglang.srt.models.locate_anything:LocateAnythingBoxGrammarLogitProcessor"


def test_a_class_that_comes_with_a_models_file_is_upgraded_too():
    module, name = MODEL_CLASS.split(":")
    for payload in (MODEL_CLASS, wire.payload_for(module, name)):
        assert Verifier(Policy.default()).resolve(payload) is getattr(builtins, name)
        with pytest.raises(PayloadRefused, match=f"the class of the same name|{module}|expected"):
            Verifier(Policy(stock=Stock.DENY)).resolve(payload)
        with pytest.raises(PayloadRefused):
            Verifier(Policy(stock=Stock.ALLOW)).resolve(payload)


@pytest.mark.parametrize("stock", Stock)
def test_an_entry_of_the_policy_allows_any_class_of_a_models_file(stock):
    from sglang.srt.models import locate_anything

    verifier = Verifier(Policy(stock=stock, allow=(MODEL_CLASS,)))
    name = MODEL_CLASS.split(":")[1]

    assert verifier.resolve(getattr(locate_anything, name).to_str()) is getattr(
        locate_anything, name
    )


def test_the_stock_names_are_those_that_sglang_has():
    from sglang.srt.sampling import custom_logit_processor as stock

    processors = {
        name
        for name, value in vars(stock).items()
        if isinstance(value, type) and issubclass(value, stock.CustomLogitProcessor)
    }
    assert processors == {*STOCK_NAMES, "CustomLogitProcessor", "ThinkingBudgetLogitProcessor"}


def test_the_policy_is_public_in_the_trust_boundary_and_other_names_are_not():
    assert trust.Policy is file.Policy
    with pytest.raises(AttributeError, match=r"\.trust' has no attribute 'other'$"):
        _ = trust.other
