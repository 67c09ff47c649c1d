"""The statements of docs/policy.md and SECURITY.md hold."""

import json
import re
from pathlib import Path

from sglang_lp.catalogue.source import Source
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import RefusalReason
from sglang_lp.params import MAX_TOKEN_IDS
from sglang_lp.policy.decisions import Ceiling, Chosen, Profile
from sglang_lp.policy.file import PolicyFile
from sglang_lp.server.startup.launch import REFUSED
from sglang_lp.text.automaton import MAX_SEQUENCE_IDS
from sglang_lp.trust import Policy
from sglang_lp.trust.allow_list import MAX_PIN_BYTES, MAX_PINS, Pin
from sglang_lp.trust.audit import Limits
from sglang_lp.trust.verifier import MAX_CHARS

ROOT = Path(__file__).resolve().parents[2]


def policy():
    return (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")


def security():
    return (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def example():
    return re.search(r"```toml\n(.*?)```", policy(), re.DOTALL)[1]


def test_the_documented_example_is_a_policy(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(example(), encoding="utf-8")
    read = Policy.from_toml(path)

    assert read.allow == ("my_package.processors:AtMost",)
    assert read.pin[0].size == 474
    assert read.builtins is Policy.default().builtins
    assert read.stock is Policy.default().stock
    assert read.limits == Policy.default().limits


def test_the_example_shows_every_key():
    for struct in (PolicyFile, Pin, Limits, Chosen, Profile, Source):
        for key in struct.__struct_fields__:
            assert re.search(rf"^(\[+)?{key}\b", example(), re.MULTILINE), key
    assert all(f" {key} = " in example() for key in Ceiling.__struct_fields__)


def test_the_documented_limits_are_the_real_ones():
    assert f"at most {MAX_PINS} pins of at most {MAX_PIN_BYTES:,} bytes" in policy()
    assert f"longer than {MAX_CHARS:,} characters" in policy()


def test_every_reason_is_documented():
    for reason in RefusalReason:
        assert f"`{reason.value}`" in security()


def test_every_link_of_security_leads_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", security()):
        assert (ROOT / target.partition("#")[0]).exists(), target


def test_every_server_that_does_not_start_is_named_with_the_reason():
    for refused in REFUSED:
        assert f"| {refused.way} | {refused.why} |" in security().replace("`", "")


def test_the_bounds_of_security_are_the_real_ones():
    bounds = security().partition("## What is bounded")[2].partition("\n## ")[0]
    limits = [MAX_CHARS, MAX_PINS, MAX_PIN_BYTES, MAX_TOKEN_IDS, MAX_SEQUENCE_IDS, int(MAX_BIAS)]
    for limit in [*limits, Limits().logged_refusals_per_minute]:
        assert re.search(rf"\b{limit:,}\b", bounds), limit


def test_every_rule_of_security_is_shown_by_a_test():
    rules = security().partition("| rule | shown by |")[2].partition("\n\n")[0]
    for rule in rules.splitlines()[2:]:
        shown_by = re.findall(r"\]\((tests/[a-z/]+/test_[a-z_]+\.py)\)", rule)
        assert shown_by, rule


def test_the_siege_that_security_describes_is_the_one_that_is_stored():
    siege = json.loads((ROOT / "benchmarks" / "results" / "siege.json").read_text())

    assert f"{siege['hostile_requests']:,} hostile requests" in security()
    for form, outcomes in siege["hostile_outcomes"].items():
        assert f"`{form.partition(',')[0]}`" in security()
        assert sum(outcomes.values()) > 500, form
    assert siege["hostile_requests_not_refused"] == siege["good_requests_failed"] == 0
    assert siege["good_outputs_changed"] == 0
    assert siege["good_requests_under_attack"] > 100
    assert siege["server_healthy_at_the_end"]
