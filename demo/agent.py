"""The scene of an agent: a model that calls a tool in the middle of its thoughts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from demo.corpus import END_TURN, THINK
from demo.server import ARGUMENTS, serve
from demo.show import Scene, cut
from sglang_lp.client import Attachment, attach
from support.cpu import strict
from support.plugins import PROBES
from support.processors.scripted import Scripted
from support.servers.server import launch

if TYPE_CHECKING:
    from demo.scenes import Model

__all__ = ["agent"]

QUESTION = "What is 2 + 3? Use the tool."
NUMBERS = {"a": 2, "b": 3}
START = "<tool_call>"
CALL = f'{START}\n{{"name": "add", "arguments": {json.dumps(NUMBERS)}}}\n</tool_call>'
#: The answer that `Scripted` forces, because the demo's model was never taught to call a tool. The
#: block is still open where the call begins, as with Qwen3.5.
SCRIPT = f"{THINK}\nTwo numbers and a plus sign, so this is a sum.\n{CALL}{END_TURN}"
#: Budgets that end before the call, and in the middle of it.
SHOWN = 8, 40
#: A budget that does not end before the call does.
LARGE = 64
_PARSERS: dict[str, Any] = {"reasoning_parser": "qwen3", "tool_call_parser": "qwen25"}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer"} for name in NUMBERS},
        },
    },
}


def agent(directory: Path, model: Model) -> Scene:
    """Ask for the same call at every small budget.

    No budget ends inside of the start of the call: models that were taught to call have a token
    for it, and the demo's model spells it.

    Args:
        directory: Of the model.
        model: The model.
    """
    scene = Scene("An agent with a small budget: no tool call is cut")
    spelled = model.tokenizer.encode(SCRIPT, add_special_tokens=False)
    script, begin = spelled.ids, SCRIPT.index(START)
    inside = range(begin + 1, begin + len(START))
    nexts = [start for start, _ in spelled.offsets[1:]]
    budgets = [budget for budget, at in enumerate(nexts) if at not in inside]

    def attached(budget: int) -> Attachment:
        think = attach("ThinkingBudgetLogitProcessor", thinking_budget=budget)
        return attach([attach(Scripted, script=script), think])

    with serve(directory, **_PARSERS) as url:
        said = {budget: _ask(url, attached(budget)) for budget in budgets}
    for budget in SHOWN:
        scene.row(QUESTION, f"thinking_budget={budget}, chat", cut(json.dumps(said[budget])))
    kept = [budget for budget in budgets if _calls(said[budget]) == [NUMBERS]]
    scene.proves(
        f"the call comes back whole at {len(kept)} of {len(budgets)} budgets, of which none ends "
        "inside of its start",
        seen=kept == budgets,
    )
    ours = said[LARGE]
    strict = _ask_strict(directory, script)
    for who, one in (("this toolkit", ours), ("stock SGLang, strict thinking", strict)):
        scene.row(QUESTION, f"{who}, a budget of {LARGE}", cut(json.dumps(one)))
    scene.proves(
        f"under stock strict thinking the model may call only after {LARGE} tokens of thought",
        seen=_calls(ours) == _calls(strict) == [NUMBERS]
        and len(ours["reasoning_content"]) < len(strict["reasoning_content"]),
    )
    return scene


def _ask(url: str, attached: Attachment) -> dict[str, Any]:
    """Return the reasoning, the content and the tool calls of a chat's answer."""
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        json={
            "model": "demo",
            "messages": [{"role": "user", "content": QUESTION}],
            "tools": [TOOL],
            "temperature": 0,
            "max_tokens": 200,
            **attached.extra_body(),
        },
        timeout=120,
        trust_env=False,
    )
    answer.raise_for_status()
    message = answer.json()["choices"][0]["message"]
    parts = "reasoning_content", "content", "tool_calls"
    return {part: message[part] for part in parts if message.get(part)}


def _ask_strict(directory: Path, script: list[int]) -> dict[str, Any]:
    """Ask the same of a stock server with strict thinking and a budget of ``LARGE``."""
    arguments = {**ARGUMENTS, **_PARSERS}
    arguments |= {"grammar_backend": "xgrammar", "enable_strict_thinking": True}
    variables = {"SGLANG_PLUGINS": strict.NAME, "SGLANG_MAX_THINK_TOKENS": str(LARGE)}
    with (
        tempfile.TemporaryDirectory() as scratch,
        launch(directory, Path(scratch), arguments, paths=[PROBES], variables=variables) as server,
    ):
        return _ask(server.url, attach(Scripted, script=script))


def _calls(said: dict[str, Any]) -> list[Any]:
    """Return the arguments of the calls."""
    return [json.loads(call["function"]["arguments"]) for call in said.get("tool_calls", ())]
