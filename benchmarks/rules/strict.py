"""SGLang's ``--enable-strict-thinking`` and this toolkit side by side: ``make bench PART=strict``.

The same requests go to the demo's model behind three servers: strict thinking with a parser that
supports it, strict thinking with one that does not, and this toolkit with a ceiling. Counted is how
many tokens the first block of thought has. The results go to ``benchmarks/results/strict.json`` and
into the table of ``docs/operating.md``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anthropic
import openai
from tokenizers import Tokenizer

from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from demo.corpus import END_THINK, QUESTIONS, THINK, prompt
from demo.model import DEFAULT_DIRECTORY, SpecialTokens, ensure_model
from demo.server import ARGUMENTS
from support.cpu import strict
from support.plugins import PROBES
from support.servers.server import Server, launch

QUESTION = next(iter(QUESTIONS))
POLICY = Path(__file__).with_name("strict.toml")
#: The operator's cap, as in the policy, and a client's budgets below and above it.
CAP, LESS, MORE = 32, 8, 1024


class Refused(Exception):
    """A server refused a request."""


class Side:
    """One server, and the ways to ask it."""

    def __init__(self, server: Server, model: Path) -> None:
        self._server = server
        self._ids = SpecialTokens.of(model)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._openai = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        self._anthropic = anthropic.Anthropic(base_url=server.url, api_key="none")

    def ask(self, case: Callable[[Side], int]) -> int | str:
        """Return how many tokens were thought, or what the refusal was."""
        try:
            return case(self)
        except Refused as refusal:
            return str(refusal)

    def generate(self, **fields: Any) -> int:
        """Ask ``/generate``."""
        body = {
            "text": prompt(QUESTION),
            "sampling_params": {"temperature": 0, "max_new_tokens": 300},
            "require_reasoning": True,
            **fields,
        }
        reply = self._server.post("/generate", body)
        if reply.status != 200:
            raise Refused(f"HTTP {reply.status}")
        ids = reply.output_ids
        start = ids.index(self._ids.think) + 1 if self._ids.think in ids else 0
        return ids.index(self._ids.end_think, start) - start

    def chat(self, **fields: Any) -> int:
        """Ask for a chat completion."""
        said = self._openai.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=300,
            logprobs=True,
            **fields,
        ).choices[0]
        tokens = [one.token for one in (said.logprobs and said.logprobs.content) or ()]
        start = tokens.index(THINK) + 1 if THINK in tokens else 0
        return tokens.index(END_THINK, start) - start

    def message(self) -> int:
        """Ask for a message of Anthropic's, with a budget above the operator's cap."""
        said = self._anthropic.messages.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=2048,
            thinking={"type": "enabled", "budget_tokens": MORE},
            extra_body={"temperature": 0},
        )
        for block in said.content:
            if block.type == "thinking":
                return len(self._tokenizer.encode(block.thinking).ids)
        text = "".join(block.text for block in said.content if block.type == "text")
        thought = text.partition(THINK)[2].partition(END_THINK)[0]
        return len(self._tokenizer.encode(thought, add_special_tokens=False).ids)


CASES: Mapping[str, Callable[[Side], int]] = {
    "chat, no field": lambda side: side.chat(),
    f"`/generate`, `max_thinking_tokens` = {LESS}": lambda side: side.generate(
        max_thinking_tokens=LESS
    ),
    f"`/generate`, `max_thinking_tokens` = {MORE}": lambda side: side.generate(
        max_thinking_tokens=MORE
    ),
    'chat, `reasoning_effort` = "low"': lambda side: side.chat(reasoning_effort="low"),
    f"Anthropic's `budget_tokens` = {MORE}": lambda side: side.message(),
}

STRICT = {"grammar_backend": "xgrammar", "enable_strict_thinking": True}
SERVERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]] = {
    "strict, `qwen3`": (
        {**STRICT, "reasoning_parser": "qwen3"},
        {"SGLANG_PLUGINS": strict.NAME, "SGLANG_MAX_THINK_TOKENS": str(CAP)},
    ),
    "strict, `deepseek-r1`": (
        {**STRICT, "reasoning_parser": "deepseek-r1"},
        {"SGLANG_PLUGINS": strict.NAME},
    ),
    "this toolkit": (
        {"reasoning_parser": "qwen3"},
        {"SGLANG_PLUGINS": "sglang_lp", "SGLANG_LP_POLICY": str(POLICY)},
    ),
}


def measure() -> dict[str, dict[str, int | str]]:
    """Return the thinking tokens of each case on each server."""
    model = ensure_model(DEFAULT_DIRECTORY)
    found: dict[str, dict[str, int | str]] = {}
    for name, (arguments, variables) in SERVERS.items():
        with (
            tempfile.TemporaryDirectory() as scratch,
            launch(
                model,
                Path(scratch),
                {**ARGUMENTS, **arguments},
                paths=[PROBES],
                variables=variables,
            ) as server,
        ):
            side = Side(server, model)
            found[name] = {case: side.ask(ask) for case, ask in CASES.items()}
        print(name, found[name], flush=True)
    return found


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    sides = results["sides"]
    rows = ([case, *(str(side[case]) for side in sides.values())] for case in CASES)
    return "\n".join(table([f"tokens thought, cap {CAP}", *sides], rows))


PART = Part("strict", "operating.md", page_block)


def main() -> int:
    """Measure, store the results and renew the page."""
    results = {"machine": machine(), "sides": measure()}
    PART.store(results)
    print(page_block(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
