"""What docs/policy.md and SECURITY.md say is so."""

import re
from pathlib import Path

from sglang_lp.errors import RefusalReason
from sglang_lp.trust import Policy
from sglang_lp.trust.policy import MAX_PIN_BYTES, MAX_PINS, Limits, Pin, PolicyFile
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

    assert read.allow == ("my_package.processors:NoEarlyStop",)
    assert read.pin[0].size == 474
    assert read.builtins is Policy.default().builtins
    assert read.stock is Policy.default().stock
    assert read.limits == Policy.default().limits


def test_the_example_shows_every_key():
    for struct in (PolicyFile, Pin, Limits):
        for key in struct.__struct_fields__:
            assert re.search(rf"^(\[+)?{key}\b", example(), re.MULTILINE), key


def test_the_documented_limits_are_the_real_ones():
    assert f"at most {MAX_PINS} pins of at most {MAX_PIN_BYTES:,} bytes" in policy()
    assert f"longer than {MAX_CHARS:,} characters" in policy()


def test_every_reason_is_documented():
    for reason in RefusalReason:
        assert f"`{reason.value}`" in security()


def test_every_link_of_security_leads_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", security()):
        assert (ROOT / target).exists(), target
