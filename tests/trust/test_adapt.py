"""Classes of other engines are allowed by the policy, and by nothing else."""

import re
import sys
from importlib.metadata import EntryPoint

import pytest

from sglang_lp import cli, wire
from sglang_lp.adapters import GROUPS, INTERFACES, loading, vllm_names
from sglang_lp.errors import PayloadRefused, PolicyError, shown
from sglang_lp.policy.adapt import Adapt
from sglang_lp.trust import Policy, Verifier

V1 = "support.processors.foreign:TargetToken"
RECORDER = "support.processors.recording:Recorder"
TOP_K = "transformers:TopKLogitsWarper"


def policy(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return Policy.from_toml(path)


def table(entry, **keys):
    return "\n".join(["[[adapt]]", f'class = "{entry}"', *(f"{k} = {v}" for k, v in keys.items())])


def interfaces(verifier):
    return {one.name: getattr(one.processor, "interface", None) for one in verifier.allowed}


@pytest.mark.parametrize(
    ("entry", "interface"),
    [
        (V1, "vllm-v1"),
        ("support.processors.foreign:SpelledAdapter", "vllm-v1"),
        ("support.processors.foreign:NoRepeatV2", "vllm-v2"),
        ("support.processors.foreign:Polite", "transformers"),
        (TOP_K, "transformers"),
        ("support.processors.foreign:echo", "vllm-request"),
    ],
)
def test_the_interface_is_found_out_where_it_is_plain(entry, interface, tmp_path):
    assert interfaces(Verifier(policy(tmp_path, table(entry))))[entry] == interface


def test_a_class_is_named_as_the_policy_names_it_and_by_its_own_name(tmp_path):
    verifier = Verifier(policy(tmp_path, table(TOP_K)))
    own = "transformers.generation.logits_process", "TopKLogitsWarper"
    texts = [TOP_K, ":".join(own), wire.payload_for("transformers", own[1]), wire.payload_for(*own)]

    assert len({verifier.lookup(text).processor for text in texts}) == 1
    with pytest.raises(PayloadRefused):
        verifier.lookup("transformers:TopPLogitsWarper")


def test_an_entry_point_is_allowed_by_its_name_and_not_by_being_installed(tmp_path, monkeypatch):
    entry = EntryPoint("target", V1, "vllm.logits_processors")
    monkeypatch.setattr(loading, "entry_points", lambda group: [entry] * (group == entry.group))
    with pytest.raises(PayloadRefused):
        Verifier(Policy.default()).lookup(V1)

    verifier = Verifier(policy(tmp_path, '[[adapt]]\nentry_point = "target"'))
    assert verifier.lookup(V1).processor.interface == "vllm-v1"


@pytest.mark.parametrize(
    ("installed", "wanted", "why"),
    [
        ({}, "other", "entry_point: 'other' is not installed; installed are: none"),
        ({"b": V1, "a": V1}, "c", "entry_point: 'c' is not installed; installed are: a, b"),
        (
            {"a": "no class" * 20},
            "a",
            'entry_point a: expected "package.module:Class", got ' + shown("no class" * 20, 120),
        ),
    ],
)
def test_an_entry_point_that_cannot_be_found_or_read_is_refused(
    tmp_path, monkeypatch, installed, wanted, why
):
    found = [EntryPoint(*one, "vllm.logits_processors") for one in installed.items()]
    monkeypatch.setattr(
        loading, "entry_points", lambda group: found * (group == "vllm.logits_processors")
    )
    with pytest.raises(PolicyError, match=rf"adapt\[0\]: {re.escape(why)}$"):
        Verifier(policy(tmp_path, f'[[adapt]]\nentry_point = "{wanted}"'))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[adapt]]", r": adapt\[0\]: expected either class or entry_point"),
        ('[[adapt]]\nclass = "a:b"\nentry_point = "c"', "expected either class or entry_point"),
        (table("math.gcd"), 'expected "package.module:Class"'),
        (table("math:gcd:x"), 'expected "package.module:Class"'),
        (table(":Class"), 'expected "package.module:Class"'),
        (table("module:"), 'expected "package.module:Class"'),
        (table("math:gcd"), "expected a class, got builtin_function"),
        (table("no_such_module:X"), r"adapt\[0\]: no_such_module:X: importing no_such_module fail"),
        (
            table("support.processors.foreign:Nobody"),
            "support.processors.foreign has no Nobody; correct the name",
        ),
        (table("__main__:X"), "a class of __main__ travels as code"),
        (
            table("support.processors.foreign:DynamoForced"),
            "its interface is not plain; write interface =",
        ),
        (
            table("support.processors.foreign:DynamoForced", interface='"vllm"'),
            "interface: expected one of",
        ),
        (
            table("support.processors.foreign:Polite", interface='"vllm-v1"'),
            "expected a subclass of vllm.v1",
        ),
        (table(V1, interface='"vllm-v2"'), "expected a subclass of vllm.v1.worker.gpu"),
        (table(V1, interface='"dynamo"'), "expected processor.input_ids, logits"),
        (
            table("support.processors.foreign:AdapterLogitsProcessor"),
            "does not override is_argmax_invariant",
        ),
        (table(V1, arguments="{ x = 1 }"), "classes of vllm-v1 take none"),
        (table(V1, generation_only="true"), "generation_only: not for classes of vllm-v1"),
        (table(TOP_K, arguments="{ k = 1 }"), "it takes no 'k'; it takes top_k"),
        (table(TOP_K, color="1"), "expected one of class, entry_point, interface, arguments"),
        (f"{table(TOP_K)}\n{table(TOP_K)}", "is allowed already"),
        (
            f'allow = ["{RECORDER}"]\n{table(RECORDER)}',
            "name it in allow",
        ),
    ],
)
def test_what_cannot_be_adapted_is_refused_at_start_up(text, why, tmp_path):
    with pytest.raises(PolicyError, match=why):
        Verifier(policy(tmp_path, text))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"name": "no class" * 20},
            'class: expected "package.module:Class", got ' + shown("no class" * 20, 120),
        ),
        (
            {"name": TOP_K, "interface": "vllm"},
            f"interface: expected one of {', '.join(INTERFACES)}, got 'vllm'",
        ),
    ],
)
def test_a_refused_entry_says_what_came(given, why):
    with pytest.raises(PolicyError, match=f"^{re.escape(why)}$"):
        Adapt(**given)


def test_vllm_can_be_imported_only_while_a_class_is(tmp_path):
    Verifier(policy(tmp_path, table(V1)))

    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]
    with pytest.raises(ModuleNotFoundError):
        import vllm  # noqa: F401


def test_the_stand_in_names_what_it_lacks(tmp_path, monkeypatch):
    (tmp_path / "wants_more.py").write_text("from vllm.engine import LLMEngine")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PolicyError, match=r"ModuleNotFoundError: No module named 'vllm.engine'"):
        Verifier(policy(tmp_path, table("wants_more:Mine")))


def test_an_installed_vllm_gives_its_own_names(tmp_path, monkeypatch):
    package = tmp_path / "vllm" / "v1" / "sample" / "logits_processor"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:3]):
        (folder / "__init__.py").touch()
    (package / "__init__.py").write_text(
        "class LogitsProcessor: pass\nclass AdapterLogitsProcessor(LogitsProcessor): pass"
    )
    (tmp_path / "mine.py").write_text(
        "from vllm.v1.sample.logits_processor import LogitsProcessor\n"
        "class Mine(LogitsProcessor): pass"
    )
    monkeypatch.syspath_prepend(tmp_path)
    vllm_names._is_installed.cache_clear()
    try:
        verifier = Verifier(policy(tmp_path, table("mine:Mine")))
        (base,) = verifier.lookup("mine:Mine").processor.foreign.__bases__
        assert base.__module__ == "vllm.v1.sample.logits_processor"
        assert sys.modules["vllm"].__file__ == str(tmp_path / "vllm" / "__init__.py")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in {"vllm", "mine"}]:
            del sys.modules[name]
        monkeypatch.undo()
        vllm_names._is_installed.cache_clear()


def test_doctor_lists_what_is_adapted_and_what_is_only_installed(tmp_path, monkeypatch, capsys):
    entries = [EntryPoint("target", V1, "vllm.logits_processors")]
    monkeypatch.setattr(loading, "entry_points", lambda group: entries * (group == GROUPS[1]))
    path = tmp_path / "policy.toml"
    path.write_text(table(TOP_K))

    assert cli.main(["doctor", "--policy", str(path)]) == 0
    said = capsys.readouterr().out
    own = "transformers.generation.logits_process:TopKLogitsWarper (transformers)"
    assert f"{TOP_K}, which is {own}" in said
    assert f'installed but not allowed: {V1}; to allow it: [[adapt]] entry_point = "target"' in said
