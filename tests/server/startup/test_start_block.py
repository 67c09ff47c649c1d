"""The first log message of a guarded server names its guard, its policy and its hooks."""

from importlib.metadata import version
from types import SimpleNamespace

import pytest

from sglang_lp.policy.sections import Ceiling, Chosen, Profile
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.start_block import describe_start
from sglang_lp.trust import Policy

BAN = Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [1]})
KEPT = SimpleNamespace(
    admin_api_key="key", tokenizer_worker_num=1, enable_custom_logit_processor=True
)
OWN = "support.processors.recording:Census"


@pytest.fixture
def _installed(monkeypatch):
    monkeypatch.setattr(installation, "installed", [("a", None), ("b", None)])
    monkeypatch.setattr(installation, "_is_live", lambda target, _ours: target == "a")


@pytest.mark.usefixtures("_installed")
def test_the_block_names_the_guard_the_policy_and_all_that_it_decides():
    policy = Policy(
        source="/etc/policy.toml",
        allow=(OWN,),
        defaults=BAN,
        always=(BAN,),
        profiles={"support": Profile(processors=(BAN,))},
        ceilings={"thinking_budget": Ceiling(at_most=20)},
        effort={"low": 4, "high": -1},
    )
    guard = Guard(policy)

    assert describe_start(guard, KEPT).split("\n    ") == [
        f"sglang-lp {version('sglang-lp')} guards this server, SGLang {version('sglang')}",
        f"policy: /etc/policy.toml, fingerprint {guard.fingerprint}",
        f"allowed: built-ins, SGLang's own processors: upgrade, {OWN}",
        "profiles: support",
        "by default: DisallowedTokensLogitsProcessor",
        "for every request: DisallowedTokensLogitsProcessor",
        "ceilings: thinking_budget at most 20 (lower)",
        "effort: low 4, high -1",
        "hooks: 1 of 2 live",
    ]


@pytest.mark.usefixtures("_installed")
def test_without_decisions_the_block_has_four_lines():
    assert len(describe_start(Guard(Policy.default()), KEPT).splitlines()) == 4


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(("workers", "close"), [(1, "start with --admin-api-key"), (2, "a proxy")])
@pytest.mark.parametrize("key", [None, ""])
def test_without_an_administrators_key_the_block_says_in_a_line_what_is_open(key, workers, close):
    settings = {"admin_api_key": key, "tokenizer_worker_num": workers}
    arguments = SimpleNamespace(**{**vars(KEPT), **settings})
    *_, last = describe_start(Guard(Policy.default()), arguments).splitlines()

    assert last.startswith("    open to every client: /release_memory_occupation, ")
    assert close in last


@pytest.mark.usefixtures("_installed")
def test_a_server_that_runs_no_processors_says_so_in_a_line():
    off = SimpleNamespace(**{**vars(KEPT), "enable_custom_logit_processor": False})
    *_, last = describe_start(Guard(Policy.default()), off).splitlines()

    assert last == (
        "    PROCESSORS ARE OFF, and requests that name one are refused: add "
        "--enable-custom-logit-processor"
    )
