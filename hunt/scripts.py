"""Requests whose answers are scripted: thoughts, calls, and what guarantees and limits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from demo.corpus import prompt as chat_prompt
from hunt.formats import TOOL, calls
from hunt.processors import SCRIPTED
from hunt.sent import CHAT, GENERATE, MESSAGES, Body, Sent
from hunt.tokens import encode
from hunt.values import CLOSING, EOS, QUESTIONS, chance, seldom
from sglang_lp import wire

if TYPE_CHECKING:
    from hunt.servers import Kind

__all__ = ["scripted"]

_CHAIN, _BUDGET = "ChainLogitProcessor", "ThinkingBudgetLogitProcessor"
_START, _END, _CALL = "<think>", "</think>", "<tool_call>"
_WORDS = ("A", " A", " five", "\n", " sheep")
_DELIMITERS = st.sampled_from([_END, _END, _START, _CALL])
_BEGUN = _DELIMITERS.flatmap(lambda one: st.integers(1, len(one) - 1).map(lambda n: one[:n]))


@st.composite
def scripted(draw: st.DrawFn, kind: Kind) -> Sent:
    """Draw a request whose answer follows a script as far as its rules let it.

    Args:
        draw: Of Hypothesis.
        kind: Of the server that it is for.
    """
    if kind.tools and draw(chance(2)):
        return draw(_with_calls(kind.tools, kind.parser))
    return draw(_with_thoughts())


@st.composite
def _thoughts(draw: st.DrawFn) -> str:
    """Draw thoughts with delimiters that begin, are doubled, are missing or stray."""
    doubled = _DELIMITERS.map(lambda one: one * 2)
    piece = seldom(st.sampled_from(_WORDS), _DELIMITERS | doubled | _BEGUN, 2)
    text = "".join(draw(st.lists(piece, min_size=1, max_size=8)))
    return draw(st.sampled_from(["", "", _START])) + text


@st.composite
def _with_thoughts(draw: st.DrawFn) -> Sent:
    script = encode(draw(_thoughts()))
    budget = {
        name: value
        for name, value in (
            ("thinking_budget", draw(st.sampled_from([None, 1, 3, 5, -1]))),
            ("min_answer_tokens", draw(st.sampled_from([None, 1, 1, 2]))),
            ("answer_room", draw(st.sampled_from([None, 2, 5]))),
        )
        if value is not None
    }
    most = draw(st.integers(3, 14))
    if draw(chance(3)):  # a delimiter is begun when the block has to be closed
        script += encode(draw(_BEGUN))
        room = max(budget.get(name, 0) for name in ("answer_room", "min_answer_tokens"))
        most = len(script) + CLOSING + room
    script += draw(seldom(st.just([EOS]), st.just([]), 4))
    params: Body = {"chain": [SCRIPTED, _BUDGET], "0.script": script}
    params |= {f"1.{name}": value for name, value in budget.items()}
    path = draw(st.sampled_from([GENERATE, GENERATE, CHAT]))
    question = draw(st.sampled_from(QUESTIONS))
    stream = {"stream": True} if draw(chance(3)) else {}
    if path == CHAT:
        return Sent(CHAT, stream | _chat(question, _CHAIN, params, most))
    begun = draw(st.sampled_from(["", _START, _START + "\nA"]))
    return Sent(
        GENERATE,
        stream
        | {
            "text": chat_prompt(question) + begun,
            "custom_logit_processor": _CHAIN,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": most,
                "custom_params": params,
                "skip_special_tokens": False,
            },
        },
    )


@st.composite
def _with_calls(draw: st.DrawFn, tools: str, parser: str | None) -> Sent:
    text = draw(calls(tools))
    if parser and draw(chance(3)):
        text = draw(st.sampled_from(["A" + _END, _START + "A" + _END, _START + "A"])) + text
    script = [*encode(text), EOS]
    question = draw(st.sampled_from(QUESTIONS))
    stream = {"stream": True} if draw(chance(2)) else {}
    if draw(chance(5)):
        metadata = {wire.ENTRY: wire.fold(SCRIPTED, {"script": script})}
        function = TOOL["function"]
        tool = {"name": function["name"], "input_schema": function["parameters"]}
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        body = _chat(question, None, None, len(script) + 10)
        body |= {"tools": [tool], "tool_choice": choice, "metadata": metadata}
        return Sent(MESSAGES, stream | body)
    limit: dict[str, Any] = draw(
        seldom(st.just({"parallel_tool_calls": False}), st.just({"tool_choice": "none"}), 5)
    )
    body = _chat(question, SCRIPTED, {"script": script}, len(script) + 10)
    return Sent(CHAT, stream | body | {"tools": [TOOL], **limit})


def _chat(question: str, name: str | None, params: Body | None, most: int) -> Body:
    body: Body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": most,
    }
    if name is not None:
        body |= {"custom_logit_processor": name, "custom_params": params}
    return body
