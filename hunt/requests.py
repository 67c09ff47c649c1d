"""HTTP requests in every form that the endpoints take."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from demo.corpus import prompt as chat_prompt
from hunt.formats import TOOL
from hunt.processors import named
from hunt.sent import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES, Body, Sent
from hunt.values import (
    QUESTIONS,
    VOCAB,
    chance,
    counts,
    ids,
    lists,
    oddly,
    seldom,
    texts,
)
from sglang_lp import wire

if TYPE_CHECKING:
    from hunt.servers import Kind

__all__ = ["LENGTHS", "has_grammar", "requests"]

#: SGLang's names of a least length; the toolkit refuses one with a grammar.
LENGTHS = ("min_new_tokens", "min_tokens")
_GRAMMARS = {"regex", "json_schema", "ebnf", "structural_tag", "response_format"}

_REGEXES = st.sampled_from(
    ["[a-z ]{3,9}", "x\nTwo numbers and", "(yes|no)", "[0-9]{2}", "<think>[a-z]{4,60}"]
)
_SCHEMA = {
    "type": "object",
    "properties": {"sheep": {"enum": [1, 2]}},
    "required": ["sheep"],
    "additionalProperties": False,
}
#: SGLang's words in the order of /generate, chats and completions, where they differ.
_BIASES = st.dictionaries(
    ids.map(str), st.sampled_from([-100, -5, 5, 100, 20.5, -1e39]), min_size=1, max_size=3
)
#: What a request may say of its sampling; of these it has a few.
_SAMPLING: Mapping[str, st.SearchStrategy[Any]] = {
    "min_new_tokens": counts,
    "ignore_eos": st.sampled_from([True]),
    "stop": texts | lists(texts, 3),
    "stop_token_ids": lists(ids, 3),
    "logit_bias": _BIASES,
    "frequency_penalty": st.sampled_from([-1, 0.5, 2]),
    "presence_penalty": st.sampled_from([-1, 0.5, 2]),
    "repetition_penalty": st.sampled_from([0.5, 1.3]),
    "top_k": st.sampled_from([1, 5]),
    "top_p": st.just(0.9),
    "min_p": st.just(0.1),
    "regex": _REGEXES,
    "skip_special_tokens": st.sampled_from([False]),
    "no_stop_trim": st.sampled_from([True]),
    "n": st.sampled_from([2, 3]),
}
#: What SGLang refuses with beams, and what makes a thinking budget, which this toolkit refuses.
_NOT_WITH_BEAMS = (
    *("min_new_tokens", "stop", "regex", "json_schema"),
    *("return_logprob", "return_sampling_mask", "max_thinking_tokens"),
)
_OPENAI_NAMES = {"min_new_tokens": "min_tokens", "max_new_tokens": "max_tokens"}
_RESPONSES_TAKE = ("frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "top_p")

_BUDGETS = oddly(st.sampled_from([0, 1, 4, 6, 30, 2000, -1]))
_EFFORTS = st.sampled_from(["low", "medium", "high", "none"])
#: Fields in which clients send a thinking budget or an effort, and where.
_FIELDS: Mapping[str, Callable[[Any, Any], Body]] = {
    "thinking_budget": lambda budget, _: {"thinking_budget": budget},
    "thinking_token_budget": lambda budget, _: {"thinking_token_budget": budget},
    "thinking_budget_tokens": lambda budget, _: {"thinking_budget_tokens": budget},
    "reasoning": lambda budget, _: {"reasoning": {"max_tokens": budget}},
    "thinking": lambda budget, _: {"thinking": {"type": "enabled", "budget_tokens": budget}},
    "reasoning_effort": lambda _, effort: {"reasoning_effort": effort},
    "reasoning.effort": lambda _, effort: {"reasoning": {"effort": effort}},
    "output_config": lambda _, effort: {"output_config": {"effort": effort}},
}
#: Fields of other engines' clients, each with its values.
_ENGINE_FIELDS: Mapping[str, st.SearchStrategy[Any]] = {
    "bad_words": lists(texts, 3),
    "allowed_token_ids": lists(ids, 3),
    "no_repeat_ngram_size": oddly(st.sampled_from([0, 1, 2, 4])),
    "repetition_detection": oddly(
        st.sampled_from(
            [
                {},
                {"max_pattern_size": 3, "min_count": 2},
                {"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 3},
            ]
        )
    ),
    "min_tokens": counts,
    "top_n_sigma": oddly(st.sampled_from([-1, 0, 0.5, 1, 3.5])),
}


@st.composite
def _sampling(draw: st.DrawFn, params: Body | None) -> Body:
    """Draw sampling parameters in the words of ``/generate``, next to those of a processor."""
    chosen = draw(st.lists(st.sampled_from([*_SAMPLING]), max_size=3, unique=True))
    sampling = {
        "temperature": draw(seldom(st.just(0), st.just(1), 8)),
        "max_new_tokens": draw(st.sampled_from([20, 40, 12, 4, 1])),
        **{name: draw(_SAMPLING[name]) for name in chosen if draw(st.booleans())},
    }
    if "min_new_tokens" in sampling and not draw(chance(12)):
        sampling["min_new_tokens"] = min(sampling["min_new_tokens"], sampling["max_new_tokens"])
    written = [*_texts_in(params or {})]
    if bool(written) and draw(chance(4)):  # a stop string within a text that the processor writes
        text = draw(st.sampled_from(written))
        begin = draw(st.integers(0, len(text) - 1))
        sampling["stop"] = text[begin : draw(st.integers(begin + 1, len(text)))]
    return sampling


def _texts_in(params: Body) -> Iterator[str]:
    for name, value in params.items():
        if name.rpartition(".")[2] in {"text", "phrase", "closing", "choices", "words"}:
            spelled = value if isinstance(value, list) else [value]
            yield from (text for text in spelled if isinstance(text, str) and text)


@st.composite
def _fields(draw: st.DrawFn) -> Body:
    """Draw a budget in a field of its own, or a field of another engine."""
    if draw(chance(2)):
        name = draw(st.sampled_from([*_ENGINE_FIELDS]))
        return {name: draw(_ENGINE_FIELDS[name])}
    budget = draw(_BUDGETS)
    return _FIELDS[draw(st.sampled_from([*_FIELDS]))](budget, draw(_EFFORTS))


@st.composite
def _prompt(draw: st.DrawFn) -> str:
    """Draw the text of a prompt; an answer may have begun in it."""
    question = chat_prompt(draw(st.sampled_from(QUESTIONS)))
    begun = st.sampled_from(["<think>", "<think>\n", "<think>\nTwo numbers", "</think>\nTwo"])
    before: str = draw(seldom(st.just(""), begun | texts, 3))
    return question + before


def _token_ids(text: str) -> list[int]:
    from hunt.tokens import encode

    return encode(text)


@st.composite
def _generate(draw: st.DrawFn, kind: Kind) -> Body:
    """Draw a request in SGLang's own form, for one text or a list of them."""
    count = draw(seldom(st.just(0), st.sampled_from([1, 2, 3]), 5))
    asked = [draw(named(kind)) for _ in range(count or 1)]
    samplings = [draw(_constrained(params)) for _, params in asked]
    for (_, params), sampling in zip(asked, samplings, strict=True):
        if count:
            sampling.pop("n", None)  # SGLang takes no list of processors with it
        if params is not None:
            sampling["custom_params"] = params
    prompts: list[Any] = [draw(_prompt()) for _ in asked]
    by_ids = draw(st.booleans())
    if by_ids:
        prompts = [_token_ids(text) for text in prompts]
    if by_ids and draw(chance(40)):
        prompts[0] = [*prompts[0], VOCAB]
    body: Body = {
        "input_ids" if by_ids else "text": prompts if count else prompts[0],
        "sampling_params": samplings if count else samplings[0],
        **draw(_told()),
    }
    if "return_sampling_mask" in body:
        for sampling in samplings:
            sampling.setdefault("top_k", 5)
            sampling.pop("n", None)  # SGLang answers both with HTTP 500
    if not count and draw(chance(12 if kind.drafts else 5)):
        _search_beams(draw, body)
    _name(draw, body, [name for name, _ in asked])
    return body


def _name(draw: st.DrawFn, body: Body, names: list[str | None]) -> None:
    """Write the names of the processors into a request."""
    sampling = body["sampling_params"]
    is_list = isinstance(sampling, list)
    if not is_list and names[0] and draw(chance(10)):
        params = sampling.pop("custom_params", None)
        body["custom_logit_processor"] = _folded(names[0], params)
    elif any(names):
        body["custom_logit_processor"] = names if is_list else names[0]


def _search_beams(draw: st.DrawFn, body: Body) -> None:
    """Turn a request into a beam search, mostly without what is refused with it."""
    sampling = body["sampling_params"]
    sampling["beam_width"] = draw(oddly(st.sampled_from([3, 4, 8, 16])))
    if draw(chance(8)):
        return
    for name in _NOT_WITH_BEAMS:
        body.pop(name, None)
        sampling.pop(name, None)
    params = sampling.get("custom_params") or {}
    if "catalogue" in params:
        params["ends_answer"] = False


@st.composite
def _constrained(draw: st.DrawFn, params: Body | None) -> Body:
    """Draw sampling parameters, sometimes with a schema."""
    sampling: Body = draw(_sampling(params))
    if draw(chance(15)):
        sampling["json_schema"] = json.dumps(_SCHEMA)
        sampling.pop("regex", None)
    return sampling


@st.composite
def _told(draw: st.DrawFn) -> Body:
    """Draw what ``/generate`` is asked to tell, and its budgets."""
    more: list[Body] = [{}, {"top_logprobs_num": 2}, {"return_text_in_logprobs": True}]
    body: Body = {}
    if draw(chance(6)):
        body |= {"return_logprob": True, **draw(st.sampled_from(more))}
    if draw(chance(15)):
        body["return_sampling_mask"] = True
    if draw(chance(10)):
        body["max_thinking_tokens"] = draw(_BUDGETS)
    if draw(chance(15)):
        body["require_reasoning"] = True
    return body


def _folded(name: str | None, params: Any) -> str:
    """Return a processor and its parameters as one text."""
    text: str = wire.fold(name or "none", params if isinstance(params, dict) else {})
    return text


@st.composite
def _openai(draw: st.DrawFn, kind: Kind, *, is_chat: bool) -> Body:
    """Draw a chat or a completion."""
    name, params = draw(named(kind))
    sampling = {_OPENAI_NAMES.get(key, key): one for key, one in draw(_sampling(params)).items()}
    body: Body = {"model": "demo", **sampling}
    if draw(chance(8)) and name is not None:
        body["metadata"] = {wire.ENTRY: _folded(name, params)}
    else:
        body |= {"custom_logit_processor": name} if name is not None else {}
        body |= {"custom_params": params} if params is not None else {}
    if draw(chance(4)):
        body |= draw(_fields())
    if draw(chance(2)):
        body |= {"return_meta_info": True, "return_token_ids": True}
    if is_chat:
        body |= draw(_conversation())
    else:
        prompt: Any = draw(_prompt())
        prompt = draw(st.sampled_from([prompt, _token_ids(prompt)]))
        body["prompt"] = draw(seldom(st.just(prompt), st.just([prompt, prompt]), 8))
    if draw(chance(6)):
        body["logprobs"] = True if is_chat else 1
    if draw(chance(15)):
        body.pop("regex", None)
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}}
        body["response_format"] = form
    return body


@st.composite
def _conversation(draw: st.DrawFn) -> Body:
    """Draw the messages of a chat, which may go on with one that has begun."""
    question = draw(st.sampled_from(QUESTIONS))
    body: Body = {"messages": [{"role": "user", "content": question}]}
    if draw(chance(5)):
        begun = draw(st.sampled_from(["<think>\nTwo", "<think>\nx\n</think>\n", "2 +"]) | texts)
        body["messages"].append({"role": "assistant", "content": begun})
        body["continue_final_message"] = draw(st.sampled_from([True, True, False]))
    if draw(chance(8)):
        body["tools"] = [TOOL]
        if draw(chance(3)):
            body["tool_choice"] = draw(st.sampled_from(["auto", "required", "none"]))
        if draw(chance(3)):
            body["parallel_tool_calls"] = draw(st.booleans())
    if draw(chance(12)):
        body["chat_template_kwargs"] = {"enable_thinking": draw(st.booleans())}
    if draw(chance(12)):
        body["separate_reasoning"] = draw(st.booleans())
    return body


@st.composite
def _responses(draw: st.DrawFn, kind: Kind) -> Body:
    """Draw a request of OpenAI's responses, whose processor is routed."""
    name, params = draw(named(kind))
    sampling = draw(_sampling(params))
    body: Body = {
        "model": "demo",
        "input": draw(st.sampled_from(QUESTIONS)),
        "temperature": sampling["temperature"],
        # SGLang takes some of them for itself.
        "max_output_tokens": sampling["max_new_tokens"] + 3,
        **{key: one for key, one in sampling.items() if key in _RESPONSES_TAKE},
    }
    if name is not None:
        body["metadata"] = {wire.ENTRY: _folded(name, params)}
    if draw(chance(3)):
        body |= draw(_fields())
    if draw(chance(2)):
        body["return_meta_info"] = True
    return body


@st.composite
def _messages(draw: st.DrawFn, kind: Kind) -> Body:
    """Draw a request of Anthropic's messages."""
    name, params = draw(named(kind))
    sampling = draw(_sampling(params))
    body: Body = {
        "model": "demo",
        "messages": [{"role": "user", "content": draw(st.sampled_from(QUESTIONS))}],
        "temperature": sampling["temperature"],
        "max_tokens": sampling["max_new_tokens"],
    }
    if name is not None and draw(st.booleans()):
        body["metadata"] = {wire.ENTRY: _folded(name, params)}
    if draw(chance(3)):
        body["stop_sequences"] = draw(lists(texts, 2))
    if draw(chance(3)):
        body |= draw(_fields())
    return body


def has_grammar(sampling: Mapping[str, Any]) -> bool:
    """Tell whether sampling parameters, or the body of a chat, set a grammar."""
    return bool(_GRAMMARS & sampling.keys()) or sampling.get("tool_choice") == "required"


def _part(draw: st.DrawFn, body: Body) -> None:
    """Take least lengths from grammars, mostly."""
    samplings = body.get("sampling_params", body)
    for sampling in samplings if isinstance(samplings, list) else [samplings]:
        if has_grammar(sampling) and not draw(chance(8)):
            for name in LENGTHS:
                sampling.pop(name, None)


def _ask_for_the_end(draw: st.DrawFn, body: Body) -> None:
    """Ask for a complete answer, every other time that a grammar says what is complete."""
    sampling = body.get("sampling_params", body)
    if isinstance(sampling, list) or not {"regex", "json_schema", "response_format"} & {*sampling}:
        return
    params = sampling.get("custom_params") or {}
    if isinstance(params, dict) and draw(st.booleans()):
        sampling["custom_params"] = {**params, "whole_answer": True}


@st.composite
def requests(draw: st.DrawFn, kind: Kind) -> Sent:
    """Draw a request with processors.

    Args:
        draw: Of Hypothesis.
        kind: Of the server that it is for.
    """
    path = draw(st.sampled_from([GENERATE] * 5 + [COMPLETIONS, CHAT] * 2 + [RESPONSES, MESSAGES]))
    body: Body = draw(
        {
            GENERATE: _generate(kind),
            COMPLETIONS: _openai(kind, is_chat=False),
            CHAT: _openai(kind, is_chat=True),
            RESPONSES: _responses(kind),
            MESSAGES: _messages(kind),
        }[path]
    )
    _part(draw, body)
    _ask_for_the_end(draw, body)
    if draw(st.booleans()):
        body["stream"] = True
        if path == CHAT:
            body.pop("return_token_ids", None)  # SGLang refuses both
        return Sent(path, body, draw(seldom(st.none(), st.sampled_from([1, 3, 6]), 10)))
    return Sent(path, body)
