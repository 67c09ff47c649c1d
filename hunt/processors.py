"""Processors and their parameters: every built-in, chains, profiles, adapted classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from hunt.values import (
    END,
    EOS,
    START,
    TOKENS,
    chance,
    counts,
    ids,
    lists,
    oddly,
    seldom,
    texts,
    word_ids,
    words,
)
from sglang_lp import builtins
from sglang_lp.builtins.phase import PhasedParams

if TYPE_CHECKING:
    from hunt.servers import Kind

__all__ = ["named"]

Params = dict[str, Any]
Draw = st.SearchStrategy[Params]
#: A processor's name, ``None`` for none, and its parameters.
Named = tuple[str | None, Params | None]

SCRIPTED = "support.processors.scripted:Scripted"
_ENDS = {"eos_token_ids": st.just([EOS]) | lists(ids)}
_CHOICE = {**_ENDS, "pick": st.sampled_from(["tokens", "likeliest", "sampled"])}
_ITEM_IDS = st.integers(0, 401).map(lambda number: f"item {number}")
_SHARES = st.sampled_from([-1000.0, -2.0, 0.5, 3, 1000.0])


def _some(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Draw:
    """Draw an object with all of the first entries and some of the others."""
    spelled = {name: oddly(one) for name, one in required.items()}
    others = {name: seldom(st.none(), oddly(one), 3) for name, one in (optional or {}).items()}

    def joined(drawn: tuple[Params, Params]) -> Params:
        # Mostly left out, and null once in a while.
        return drawn[0] | {name: one for name, one in drawn[1].items() if one is not None}

    return st.tuples(st.fixed_dictionaries(spelled), st.fixed_dictionaries(others)).map(joined)


@st.composite
def _sequences(draw: st.DrawFn, optional: Mapping[str, Any] | None = None) -> Params:
    """Draw several sequences of ids."""
    sequences = draw(lists(lists(ids, 3), 4))
    return {
        "token_ids": [one for sequence in sequences for one in sequence],
        "lengths": [*map(len, sequences)],
        **draw(_some({}, optional)),
    }


#: Parameters of a budget that a request with the second one must not have, or must.
_NOT_BOTH = (
    ("closing_token_ids", "closing"),
    ("thinking_budget", "soft_thinking_budget"),
    ("total_thinking_tokens", "min_thinking_tokens"),
)
_ONLY_WITH = (
    ("min_count", "max_pattern_size"),
    ("soft_top_n", "soft_thinking_budget"),
    ("wait_token_id", "min_thinking_tokens"),
)


@st.composite
def _budget(draw: st.DrawFn) -> Params:
    """Draw a thinking budget, in all of its ways."""
    budgets = st.sampled_from([0, 1, 3, 5, 8, 9, 20, -1, 10_000])
    params = draw(
        _some(
            {},
            {
                "thinking_budget": budgets,
                "total_thinking_tokens": st.sampled_from([0, 3, 8, 30]),
                "at_limit": st.sampled_from(["close", "stop"]),
                "max_pattern_size": st.sampled_from([4, 8]),
                "min_count": st.just(2),
                "min_new_share": st.sampled_from([0.2, 0.6]),
                "window_size": st.sampled_from([4, 20]),
                "closing": seldom(words, texts),
                "closing_token_ids": seldom(lists(word_ids), lists(ids)),
                "eos_token_ids": st.just([EOS]),
                "new_line_token_id": ids,
                "tool_start_token_ids": seldom(lists(word_ids, 2, 0), lists(ids, 3, 0), 4),
                "force_reasoning": st.booleans(),
                "min_thinking_tokens": st.sampled_from([1, 2]),
                "soft_thinking_budget": st.sampled_from([2, 3]),
                "soft_top_n": st.sampled_from([1, 5, 1000]),
                "wait_token_id": ids,
            },
        )
    )
    for name, other in _NOT_BOTH:
        if other in params:
            params.pop(name, None)
    for name, other in _ONLY_WITH:
        if other not in params:
            params.pop(name, None)
    if draw(chance(5)):
        params |= draw(
            st.sampled_from(
                [
                    {"thinking_start_token_id": START, "thinking_end_token_id": END},
                    {"thinking_start_token_ids": [START], "thinking_end_token_ids": [END]},
                    {"thinking_start": "<think>", "thinking_end": "</think>"},
                    {"thinking_start": "<td>", "thinking_end": "</td>"},
                    {"thinking_start_token_id": 277, "thinking_end_token_id": 25},
                ]
            )
        )
    return params


@st.composite
def _scheduled(draw: st.DrawFn) -> Params:
    start = draw(st.sampled_from([0, 0, 1, 5]))
    params = {"token_ids": draw(st.lists(ids, min_size=1, max_size=4, unique=True)), "start": start}
    if draw(st.booleans()):
        params["end"] = draw(seldom(st.sampled_from([start + 1, start + 6, 20]), st.none()))
    if draw(st.booleans()):
        params["bias"] = draw(_SHARES)
        if params.get("end") and draw(st.booleans()):
            params["final_bias"] = draw(_SHARES)
    return params


@st.composite
def _bias_words(draw: st.DrawFn) -> Params:
    words = draw(st.lists(texts, min_size=1, max_size=4))
    weights = draw(st.lists(st.sampled_from([0.5, 4, 50]), min_size=len(words), max_size=4))
    return {"words": words, "weights": weights, "max_times": draw(st.sampled_from([1, 2, 9]))}


@st.composite
def _trigger(draw: st.DrawFn) -> Params:
    phrase = _some({"phrase": texts}) | _some({"phrase_token_ids": lists(word_ids)})
    trigger = _some({"trigger": texts}) | _some({"trigger_token_ids": lists(ids, 2)})
    before = _some({}, {"before_token_ids": st.just([EOS])})
    params: Params = draw(phrase) | draw(seldom(trigger, before, 4))
    if draw(chance(4)) and "trigger" in " ".join(params):
        params["max_times"] = draw(st.sampled_from([1, 2, 5]))
    return params


_TOKEN_TEXTS = st.sampled_from(TOKENS)
#: Of every built-in but the families of budgets.
_EVERYWHERE: Mapping[str, Draw] = {
    "AllowedTokensLogitProcessor": _some({"token_ids": lists(ids, 8).map(lambda i: [*i, EOS])})
    | _some({"texts": lists(_TOKEN_TEXTS)}),
    "BadWordsLogitProcessor": _some(
        {"words": lists(texts)},
        {
            name: st.booleans()
            for name in ("ignore_case", "whole_words", "normalize", "across_prompt")
        },
    )
    | _sequences(),
    "BiasWordsLogitProcessor": _bias_words(),
    "CatalogueLogitProcessor": _some(
        {"catalogue": st.just("items")},
        {
            "subset": st.sampled_from([["even"], ["few"], ["even", "few"], ["even|few"]]),
            "exclude": st.lists(_ITEM_IDS, max_size=300),
            "only": st.lists(_ITEM_IDS, min_size=1, max_size=40),
            "trigger_token_ids": lists(ids, 1),
            "max_items": st.sampled_from([1, 2, 3, 50]),
            "ends_answer": st.booleans(),
            "scores": st.sampled_from(["model", "among"]),
        },
    ),
    "ChoiceLogitProcessor": _some({"choices": lists(texts)}, _CHOICE) | _sequences(_CHOICE),
    "CiteFromPromptLogitProcessor": _some({}, {"bias": _SHARES, **_ENDS}),
    "DRYLogitProcessor": _some(
        {},
        {
            "dry_multiplier": st.sampled_from([0.1, 0.8, 4]),
            "dry_allowed_length": st.sampled_from([1, 2]),
            "dry_penalty_last_n": st.sampled_from([2, 20, 2048]),
            "dry_sequence_breakers": lists(texts),
        },
    ),
    "DeepseekOCRNoRepeatNGramLogitProcessor": _some(
        {
            "ngram_size": st.sampled_from([1, 2, 3]),
            "window_size": st.sampled_from([3, 10, 90]),
        },
        {
            "whitelist_token_ids": lists(ids, 5, 0),
            "scope": st.sampled_from(["all", "output"]),
        },
    )
    | _some(
        {"whitelist_token_ids": lists(ids), "preset": st.sampled_from(["deepseek-ocr-pdf"])},
    ),
    "DisallowedTokensLogitsProcessor": _some({"token_ids": lists(ids, 5, 0)})
    | _some({"texts": lists(texts)})
    | _some({"unmapped": st.booleans()}),
    "ForcedSequenceLogitProcessor": _some({"token_ids": lists(ids, 8, 0)}, _ENDS)
    | _some({"text": texts}, _ENDS),
    "ForcedWordsLogitProcessor": _some(
        {"words": lists(texts, 2)}, {"within_tokens": st.sampled_from([20, 40])}
    )
    | _sequences({"within_tokens": st.sampled_from([20, 40])}),
    "GenLengthLogitProcessor": _some(
        {"bias": _SHARES},
        {"power": st.sampled_from([0, 1, 2, 8]), "complete_sentences": st.booleans()},
    )
    | _some({"bias": _SHARES, "text": _TOKEN_TEXTS}),
    "LocateAnythingBoxGrammarLogitProcessor": st.fixed_dictionaries(
        {
            "box_start_token_id": ids,
            "box_end_token_id": st.sampled_from([400, 401]),
            "none_token_id": st.just(402),
            "coord_start_token_id": st.just(500),
            "coord_end_token_id": st.sampled_from([500, 520]),
        }
    ),
    "LoopBreakerLogitProcessor": _some(
        {
            "max_pattern_size": st.sampled_from([1, 4, 20]),
            "min_count": st.sampled_from([2, 3]),
        },
        {"action": st.sampled_from(["ban", "end", "truncate"])},
    )
    | _some({}, {"preset": st.sampled_from(["code", "reasoning", "structured-output"])})
    | _some(
        {"min_new_share": st.sampled_from([0.2, 0.6])},
        {
            "ngram_size": st.sampled_from([1, 2, 4]),
            "window_size": st.sampled_from([4, 8, 20]),
            "action": st.sampled_from(["ban", "end", "truncate"]),
        },
    ),
    "MinLengthLogitProcessor": _some({"min_tokens": counts.map(lambda count: count + 1)}, _ENDS),
    "ScheduledBiasLogitProcessor": _scheduled(),
    "TemperatureLogitProcessor": _some({"temperature": st.sampled_from([0.01, 0.5, 3, 100])}),
    "ToolCallLimitLogitProcessor": _some(
        {
            "max_tool_calls": st.sampled_from([1, 2]),
            "tool_call_starts": st.just(["<tool_call>"]),
            "tool_call_end": st.sampled_from(["</tool_call>", "}"]),
        },
        _ENDS,
    ),
    "TopNSigmaLogitProcessor": _some({}, {"top_n_sigma": st.sampled_from([0.01, 1, 2.5])}),
    "ScriptLogitProcessor": _some(
        {
            "scripts": lists(st.sampled_from(["Latin", "Greek", "Han"]), 2),
            "mode": st.sampled_from(["ban", "allow"]),
        }
    ),
    "ThinkingBudgetLogitProcessor": _budget(),
    "TriggerPhraseLogitProcessor": _trigger(),
}


def _anywhere(name: str, drawn: Draw) -> Draw:
    """Draw the parameters of a built-in, for a phase of the answer too if it takes one."""
    if not issubclass(getattr(builtins, name).Params, PhasedParams):
        return drawn
    phases = _some({}, {"where": st.sampled_from(["answer", "everywhere", "thinking"])})
    return st.tuples(drawn, phases).map(lambda both: both[0] | both[1])


OF = {name: _anywhere(name, drawn) for name, drawn in _EVERYWHERE.items()}
_FAMILIES = tuple(
    name for name in builtins.__all__ if getattr(getattr(builtins, name), "family", None)
)
#: Of the classes of other engines and of the model's script.
_OTHERS: Mapping[str, Draw] = {
    SCRIPTED: _some({"script": lists(ids, 20)}),
    "support.processors.devouring:Popped": _some({"token_ids": lists(ids)}),
    "support.processors.devouring:Given": st.just({}),
    "support.processors.devouring:Taken": _some({"token_ids": lists(ids)}),
    "support.processors.devouring:Entry": _some({"token_ids": lists(ids)}),
    "support.processors.foreign:Polite": _some({"penalty": st.sampled_from([1.0, 1.5])}),
    "support.processors.foreign:Counted": _some({"first": st.sampled_from([300, 600])}),
    "support.processors.foreign:NoRepeatV2": _some({"penalty": st.sampled_from([0.5, 9.0])}),
    "support.processors.foreign:DynamoForced": _some(
        {"token_ids": lists(ids), "eos_token_id": st.just(EOS)}
    ),
    "transformers:TopKLogitsWarper": _some({"top_k": st.sampled_from([1, 5])}),
    "support.processors.foreign:Misbehaving": _some(
        {"how": st.sampled_from(["raises", "nan", "nothing"])}
    ),
}
#: Those that write text, which others ban, limit and count.
_WRITING = {
    f"{name}LogitProcessor": OF[f"{name}LogitProcessor"]
    for name in ("Choice", "ForcedSequence", "ForcedWords", "TriggerPhrase")
}
#: What servers with drafts refuse, see docs/bring-your-own.md.
_WHOLE_BATCH = ("Taken", "Entry", "NoRepeatV2")


@st.composite
def _chain(draw: st.DrawFn, of: Mapping[str, Draw]) -> Params:
    names = draw(st.lists(st.sampled_from([*of]), min_size=1, max_size=3, unique=True))
    params: Params = {"chain": names}
    for place, name in enumerate(names):
        params |= {f"{place}.{key}": value for key, value in draw(of[name]).items()}
    return params


@st.composite
def named(draw: st.DrawFn, kind: Kind) -> Named:
    """Draw what a request asks a server of this kind for.

    Args:
        draw: Of Hypothesis.
        kind: Tells which classes and profiles there are.
    """
    adapted = [
        name
        for name in kind.adapted
        if not (kind.drafts and name.rpartition(":")[2] in _WHOLE_BATCH)
    ]
    of = {**OF, **{name: _OTHERS[name] for name in (SCRIPTED, *adapted)}}
    ways: Mapping[str, Callable[[], Named]] = {
        "none": lambda: (None, None),
        "bare": lambda: (None, draw(_budget())),
        "built-in": lambda: _one(draw, OF),
        "writing": lambda: _one(draw, _WRITING),
        "thinking": lambda: ("ThinkingBudgetLogitProcessor", draw(_budget())),
        "other": lambda: _one(draw, {name: of[name] for name in of if name not in OF}),
        "chain": lambda: ("ChainLogitProcessor", draw(_chain(of))),
        "family": lambda: (draw(st.sampled_from(_FAMILIES)), draw(_budget())),
        "profile": lambda: _profile(draw, kind),
    }
    often = ["built-in"] * 6 + ["writing", "thinking", "chain"] * 2
    often += ["writing", "other", "none", "bare", "profile"]
    name, params = ways[draw(seldom(st.sampled_from(often), st.just("family"), 30))]()
    if params is None and not draw(chance(8)):
        return name, params
    if draw(chance(12)):
        params = {**(params or {}), "resumed_tokens": draw(st.sampled_from([0, 1, 3, 5]))}
    if draw(chance(40)):
        params = {**(params or {}), **draw(st.sampled_from(_STRANGE))}
    return name, params


#: Entries of ``custom_params`` that no processor has, or that are not for clients.
_STRANGE: tuple[Params, ...] = (
    {"__sglang_reasoning_in_grammar": 1},
    {"raw_logprobs": True},
    {"nobody": [[1]]},
    {"tool_start_token_ids": [198]},
)


def _profile(draw: st.DrawFn, kind: Kind) -> Named:
    profiles = kind.rules["profiles"]
    name = draw(st.sampled_from([*profiles]))
    settings = {"thinking_budget": st.sampled_from([0, 2, 5, 8, -1]), "closing": words}
    may_set = settings if profiles[name]["may_set"] or draw(chance(8)) else {}
    return name, draw(_some({}, may_set))


def _one(draw: st.DrawFn, of: Mapping[str, Draw]) -> Named:
    name = draw(st.sampled_from([*of]))
    return name, draw(of[name])
