"""The servers of a hunt: each with a policy, and with what that policy promises."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from demo.model import DEFAULT_DIRECTORY, ensure_model
from hunt.tokens import is_alone, text_of
from hunt.values import EOS
from sglang_lp.catalogue.file import save
from support.catalogues import served_index
from support.cpu import speculation, strict
from support.plugins import PROBES
from support.servers.server import Server, flags_of, launch
from support.settings import CPU_ARGUMENTS, RECORD, ROOT

__all__ = ["COMMON", "ITEMS", "KINDS", "Kind", "command_of", "start"]

POLICIES = Path(__file__).with_name("policies")
#: The catalogue that every policy names.
ITEMS = ROOT / ".cache" / "hunt-items.cat"
COMMON = {"served_model_name": "demo", "grammar_backend": "xgrammar", "enable_metrics": True}


@dataclass(frozen=True)
class Kind:
    """A server to be started, and its promises as a naive reader of its policy sees them.

    Attributes:
        name: Of the command line.
        policy: File of the policy.
        arguments: SGLang's arguments.
        variables: Environment variables.
        drafts: Whether it refuses classes that keep the state of all requests in one object.
    """

    name: str
    policy: Path
    arguments: Mapping[str, Any]
    variables: Mapping[str, str]
    drafts: bool = False

    @cached_property
    def rules(self) -> Mapping[str, Any]:
        """The policy's file as it is."""
        return tomllib.loads(self.policy.read_text())

    def always(self, processor: str, parameter: str) -> Any:
        """Return a parameter of a mandatory processor, ``None`` without one."""
        rules = self.rules.get("always", ())
        found = (one["params"][parameter] for one in rules if one["processor"] == processor)
        return next(found, None)

    @property
    def banned(self) -> tuple[str, ...]:
        """Texts that no client ever gets."""
        words = self.always("BadWordsLogitProcessor", "words") or ()
        return (*words, *filter(is_alone, map(text_of, self.banned_ids)))

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Tokens that no client ever gets."""
        return tuple(self.always("DisallowedTokensLogitsProcessor", "token_ids") or ())

    def allowed(self, profile: Any) -> tuple[int, ...]:
        """Return the tokens that a profile allows, and the end; none if it allows all."""
        rules = self.rules["profiles"].get(profile, {}) if isinstance(profile, str) else {}
        for rule in rules.get("processors", ()):
            if rule["processor"] == "AllowedTokensLogitProcessor":
                return (*rule["params"]["token_ids"], EOS)
        return ()

    @property
    def beginning(self) -> str:
        """The text that every answer begins with."""
        return self.always("ForcedSequenceLogitProcessor", "text") or ""

    @property
    def least(self) -> int:
        """Fewest tokens of an answer that ends by itself."""
        return self.always("MinLengthLogitProcessor", "min_tokens") or 0

    def ceiling(self, parameter: str) -> int | None:
        """Return the most that a request may set, ``None`` without a ceiling."""
        most: int | None = self.rules.get("ceilings", {}).get(parameter, {}).get("at_most")
        return most

    @property
    def adapted(self) -> tuple[str, ...]:
        """Names of the classes of other engines that the policy allows."""
        return tuple(one["class"] for one in self.rules.get("adapt", ()))

    @property
    def parser(self) -> str | None:
        """The served reasoning parser."""
        return self.arguments.get("reasoning_parser")

    @property
    def tools(self) -> str | None:
        """The served tool-call parser."""
        return self.arguments.get("tool_call_parser")


_REASONING = {"reasoning_parser": "qwen3", "tool_call_parser": "qwen25"}
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("plain", POLICIES / "bans.toml", COMMON, {}),
        Kind("forced", POLICIES / "forces.toml", COMMON, {}),
        Kind("reasoning", POLICIES / "bans.toml", {**COMMON, **_REASONING}, {}),
        Kind(
            "drafts",
            POLICIES / "bans.toml",
            {
                **COMMON,
                "max_running_requests": 32,
                "speculative_algorithm": "NGRAM",
                "speculative_num_draft_tokens": 8,
                "speculative_ngram_max_bfs_breadth": 4,
                # GPT-2 has no positions behind its 4,096, where SGLang verifies drafts.
                "context_length": 4096 - 2 * 8,
            },
            speculation.VARIABLES,
            drafts=True,
        ),
        Kind("free", POLICIES / "free.toml", COMMON, {}),
        Kind(
            "strict",
            POLICIES / "bans.toml",
            {**COMMON, **_REASONING, "enable_strict_thinking": True},
            {
                "SGLANG_MAX_THINK_TOKENS": "32",
                "SGLANG_PLUGINS": f"sglang_lp,sglang_lp_probe,sglang_lp_steps,{strict.NAME}",
            },
        ),
        Kind(
            "workers",
            POLICIES / "bans.toml",
            {**COMMON, "tokenizer_worker_num": 2},
            {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"},
        ),
    )
}


def command_of(kind: Kind) -> list[str]:
    """Return a command that starts a server of a kind in a checkout, with the probes of tests."""
    variables = {
        **_settings(kind),
        "PYTHONPATH": f"{PROBES.relative_to(ROOT)}:.",
        RECORD: "/tmp/record",  # noqa: S108 - in a command for a person to look at
        "OMP_NUM_THREADS": "1",
    }
    arguments = {"model_path": DEFAULT_DIRECTORY, **CPU_ARGUMENTS, **kind.arguments}
    settings = [f"{name}={value}" for name, value in variables.items()]
    program = [".venv/bin/python", "-m", "sglang.launch_server"]
    return ["env", *settings, *program, *flags_of(arguments)]


def _settings(kind: Kind) -> dict[str, str]:
    save(served_index(), ITEMS)
    return {**kind.variables, "SGLANG_LP_POLICY": str(kind.policy.relative_to(ROOT))}


@contextmanager
def start(kind: Kind, directory: Path) -> Iterator[Server]:
    """Run a server of a kind for the length of a ``with`` block.

    Args:
        kind: Which one.
        directory: Takes its log and the times of its steps.
    """
    variables = {**_settings(kind), "SGLANG_LP_POLICY": str(kind.policy)}
    with launch(
        ensure_model(),
        directory,
        kind.arguments,
        paths=[PROBES],
        variables=variables,
        forked=not kind.arguments.get("tokenizer_worker_num"),
    ) as server:
        yield server
