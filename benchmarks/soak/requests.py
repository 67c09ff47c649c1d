"""Random requests for ``make soak``: every processor, every endpoint, and refused requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang_lp import builtins, wire
from support.models.tiny_model import EOS, FREQUENT, VOCAB_SIZE, word
from support.processors import recording

__all__ = ["KINDS", "REFUSED", "Ask", "Sent", "faulty", "good", "refused"]

START, END, NEWLINE, *OTHERS = FREQUENT
#: Tokens of a prompt and of an answer, at most.
LONGEST_PROMPT, LONGEST_ANSWER = 60, 60
#: Texts or copies of one HTTP request, at most.
TOGETHER = 4

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """The processor, parameters and tokens of one text.

    Attributes:
        prompt: Its tokens.
        processor: Class of its processor, if it has one.
        params: The parameters of that.
    """

    prompt: list[int]
    processor: type | None = None
    params: Params | None = None


@dataclass(frozen=True)
class Sent:
    """An HTTP request.

    Attributes:
        kind: For the statistics.
        path: Of the endpoint.
        asks: Its texts.
        copies: Answers to each of them.
        is_list: Whether the texts go as a list, also if there is one.
        is_stream: Whether the answer comes as a stream.
        is_sampled: Whether its tokens are sampled, not the likeliest ones.
        tokens: Most tokens of each answer.
        payload: Sent instead of the payload of the processor.
    """

    kind: str
    path: str
    asks: Sequence[Ask]
    copies: int = 1
    is_list: bool = False
    is_stream: bool = False
    is_sampled: bool = False
    tokens: int = LONGEST_ANSWER
    payload: Any = None

    def without_processors(self) -> Sent:
        """Return the same load on a server that has nothing to do but to generate."""
        return replace(self, asks=[Ask(ask.prompt) for ask in self.asks], payload=None)

    def body(self) -> dict[str, Any]:
        """Return its JSON."""
        temperature = 1.0 if self.is_sampled else 0.0
        payloads = [
            self.payload or (ask.processor and ask.processor.to_str())  # type: ignore[attr-defined]
            for ask in self.asks
        ]
        prompts, params = [ask.prompt for ask in self.asks], [ask.params for ask in self.asks]
        if self.path == "/generate":
            samplings = [
                {
                    "temperature": temperature,
                    "max_new_tokens": self.tokens,
                    "ignore_eos": self.kind == "faulty",  # else some end before they fail
                    "n": self.copies,
                    "custom_params": one,
                }
                for one in params
            ]
            together: dict[str, list[Any]] = {
                "input_ids": prompts,
                "custom_logit_processor": payloads,
                "sampling_params": samplings,
            }
            return {"stream": self.is_stream} | (
                together if self.is_list else {key: value[0] for key, value in together.items()}
            )
        what = (
            {"messages": [{"role": "user", "content": "".join(map(word, prompts[0]))}]}
            if "chat" in self.path
            else {"prompt": prompts if self.is_list else prompts[0]}
        )
        return what | {
            "model": "tiny",
            "temperature": temperature,
            "max_tokens": self.tokens,
            "n": self.copies,
            "stream": self.is_stream,
            "return_token_ids": True,
            "custom_logit_processor": payloads[0],
            "custom_params": params[0],
        }


# Parameters


def _some(rng: random.Random, most: int, *, low: int = 2) -> list[int]:
    """Return different tokens, frequent ones among them."""
    rare = rng.sample(range(low, VOCAB_SIZE), rng.randint(1, most))
    return [*{*rare, *rng.sample(FREQUENT, rng.randint(0, len(FREQUENT)))}]


def _sequences(rng: random.Random, tokens: Sequence[int], most: int) -> dict[str, Any]:
    lengths = [rng.randint(1, 3) for _ in range(rng.randint(1, most))]
    return {"token_ids": rng.choices(tokens, k=sum(lengths)), "lengths": lengths}


def _allowed(rng: random.Random) -> Params:
    return {"token_ids": _some(rng, rng.choice([5, 200, 900]))}


def _disallowed(rng: random.Random) -> Params:
    if rng.random() < 0.2:
        return {"texts": [f"w{rng.randint(1, 9)}", "é"]}
    return {"token_ids": _some(rng, rng.choice([5, 200, 900]))}


def _bad_words(rng: random.Random) -> Params:
    if rng.random() < 0.2:
        return {"words": [f"w{rng.randint(1, 99)}", " w7"], "ignore_case": rng.random() < 0.5}
    return _sequences(rng, _some(rng, 5), 8)


def _bias_words(rng: random.Random) -> Params:
    words = [f"w{number}" for number in rng.sample(range(1, 100), rng.randint(1, 5))]
    weights = [rng.uniform(0.1, 9) for _ in words]
    return {"words": words, "weights": weights, "max_times": rng.randint(1, 5)}


def _choice(rng: random.Random) -> Params:
    return _sequences(rng, range(300, 320), 5) | {"eos_token_ids": [EOS]}


def _dry(rng: random.Random) -> Params:
    return {
        "dry_multiplier": rng.uniform(0.1, 8),
        "dry_base": rng.uniform(1, 4),
        "dry_allowed_length": rng.randint(1, 4),
        "dry_penalty_last_n": rng.choice([10, 100, 2048]),
        "dry_sequence_breaker_ids": _some(rng, 3),
    }


def _forced(rng: random.Random) -> Params:
    if rng.random() < 0.2:
        return {"text": "".join(word(rng.randint(300, 900)) for _ in range(rng.randint(1, 5)))}
    ends = {"eos_token_ids": [EOS]} if rng.random() < 0.5 else {}
    return {"token_ids": rng.choices(range(2, VOCAB_SIZE), k=rng.randint(1, 40)), **ends}


def _forced_words(rng: random.Random) -> Params:
    words = _sequences(rng, range(300, 330), 4)
    room = {"within_tokens": len(words["token_ids"]) + rng.randint(0, 30)}
    return words | {"eos_token_ids": [EOS, END]} | (room if rng.random() < 0.5 else {})


def _loop_breaker(rng: random.Random) -> Params:
    sizes = sorted(rng.choices(range(1, 9), k=2))
    return {
        "min_pattern_size": sizes[0],
        "max_pattern_size": sizes[1],
        "min_count": rng.randint(2, 3),
        "action": rng.choice(["ban", "end"]),
    }


def _min_length(rng: random.Random) -> Params:
    return {"min_tokens": rng.randint(1, 60), "eos_token_ids": _some(rng, 20)}


def _ngram(rng: random.Random) -> Params:
    return {
        "ngram_size": rng.randint(1, 4),
        "window_size": rng.choice([5, 30, 2**31 - 1]),
        "whitelist_token_ids": _some(rng, 3),
        "scope": rng.choice(["all", "output"]),
    }


def _scheduled_bias(rng: random.Random) -> Params:
    start = rng.randint(0, 20)
    ramp = {"bias": rng.uniform(-20, 20), "final_bias": rng.uniform(-20, 20)}
    schedule = {"start": start, "end": start + rng.randint(1, 40)}
    return {"token_ids": _some(rng, 50), **schedule, **(ramp if rng.random() < 0.7 else {})}


def _script(rng: random.Random) -> Params:
    return {"scripts": rng.sample(["Latin", "Greek", "Cyrillic", "Han"], 2), "mode": "ban"}


def _thinking(rng: random.Random) -> Params:
    ids = {"thinking_start_token_id": START, "thinking_end_token_id": END}
    return {"thinking_budget": rng.randint(0, 20), "new_line_token_id": NEWLINE, **ids}


def _trigger(rng: random.Random) -> Params:
    token_ids = rng.choices(range(300, 400), k=rng.randint(1, 5))
    phrase = {"phrase_token_ids": token_ids}
    if rng.random() < 0.3:
        others = [i for i in FREQUENT if i != token_ids[0]]  # a phrase cannot come before itself
        return phrase | {"before_token_ids": [EOS, *rng.sample(others, 2)]}
    trigger = {"trigger_token_ids": rng.sample(FREQUENT, rng.randint(1, 2))}
    return phrase | trigger | {"max_times": rng.randint(1, 5)}


def _boxes(rng: random.Random) -> Params:
    first = rng.randint(300, 400)
    return {
        "box_start_token_id": rng.choice(FREQUENT),
        "box_end_token_id": 298,
        "none_token_id": 299,
        "coord_start_token_id": first,
        "coord_end_token_id": first + rng.randint(0, 500),
    }


def _chain(rng: random.Random) -> Params:
    """Links of which no two can contradict each other."""
    links: list[tuple[str, Params]] = [
        ("ThinkingBudgetLogitProcessor", _thinking(rng)),
        ("DisallowedTokensLogitsProcessor", {"token_ids": rng.sample(OTHERS, 1)}),
        ("ScheduledBiasLogitProcessor", {"token_ids": [*OTHERS], "bias": rng.uniform(-9, 9)}),
        ("DRYLogitProcessor", _dry(rng)),
        ("MinLengthLogitProcessor", {"min_tokens": 30, "eos_token_ids": [EOS]}),
    ]
    links = rng.sample(links, rng.randint(1, len(links)))
    params: dict[str, Any] = {"chain": [name for name, _ in links]}
    for place, (_, own) in enumerate(links):
        params |= {f"{place}.{name}": value for name, value in own.items()}
    return params


def _items(rng: random.Random) -> Params:
    """Items behind a frequent token, so that the answer goes on."""
    left_out = [f"item {number}" for number in rng.sample(range(400), rng.randint(0, 300))]
    subset = rng.choice([[], ["even"], ["even|few"]])
    trigger = {"trigger_token_ids": [rng.choice(OTHERS)], "max_items": 1000}
    return {"catalogue": "items", "exclude": left_out, "subset": subset, **trigger}


def _cite(rng: random.Random) -> Params:
    return {"bias": rng.uniform(-9, 9), "eos_token_ids": rng.choice([[], [EOS]])}


def _gen_length(rng: random.Random) -> Params:
    return {"bias": rng.uniform(-1, 1), "power": rng.randint(0, 3), "eos_token_ids": [EOS]}


#: Every built-in, except the classes that are another built-in under the name of a model.
KINDS: Mapping[type, Callable[[random.Random], Params]] = {
    builtins.AllowedTokensLogitProcessor: _allowed,
    builtins.BadWordsLogitProcessor: _bad_words,
    builtins.BiasWordsLogitProcessor: _bias_words,
    builtins.CatalogueLogitProcessor: _items,
    builtins.ChainLogitProcessor: _chain,
    builtins.ChoiceLogitProcessor: _choice,
    builtins.CiteFromPromptLogitProcessor: _cite,
    builtins.DRYLogitProcessor: _dry,
    builtins.DeepseekOCRNoRepeatNGramLogitProcessor: _ngram,
    builtins.DisallowedTokensLogitsProcessor: _disallowed,
    builtins.ForcedSequenceLogitProcessor: _forced,
    builtins.ForcedWordsLogitProcessor: _forced_words,
    builtins.GenLengthLogitProcessor: _gen_length,
    builtins.LocateAnythingBoxGrammarLogitProcessor: _boxes,
    builtins.LoopBreakerLogitProcessor: _loop_breaker,
    builtins.MinLengthLogitProcessor: _min_length,
    builtins.ScheduledBiasLogitProcessor: _scheduled_bias,
    builtins.ScriptLogitProcessor: _script,
    builtins.ThinkingBudgetLogitProcessor: _thinking,
    builtins.TemperatureLogitProcessor: lambda rng: {"temperature": rng.uniform(0.1, 3)},
    builtins.ToolCallLimitLogitProcessor: lambda rng: {
        "max_tool_calls": rng.randint(1, 2),
        "tool_call_starts": [f"w{rng.randint(100, 999)}"],
        "tool_call_end": "w",
    },
    builtins.TopNSigmaLogitProcessor: lambda rng: {"top_n_sigma": rng.uniform(0.1, 3)},
    builtins.TriggerPhraseLogitProcessor: _trigger,
    builtins.WatermarkLogitProcessor: lambda _rng: {},
}


# Requests


def _ask(rng: random.Random) -> Ask:
    prompt = [rng.randrange(258, VOCAB_SIZE) for _ in range(rng.randint(1, LONGEST_PROMPT))]
    if rng.random() < 0.4:
        prompt.insert(rng.randint(1, len(prompt)), START)
    if rng.random() < 0.1:
        return Ask(prompt)
    processor = rng.choice([*KINDS])
    return Ask(prompt, processor, KINDS[processor](rng))


def good(rng: random.Random) -> Sent:
    """Return a request that is served; its answers can be checked."""
    path = rng.choices(["/generate", "/v1/completions", "/v1/chat/completions"], [6, 2, 1])[0]
    is_chat = "chat" in path
    is_list = not is_chat and rng.random() < 0.3
    asks = [_ask(rng) for _ in range(rng.randint(1, TOGETHER) if is_list else 1)]
    if is_chat:  # its prompt is text, of which every letter is a token
        asks = [replace(asks[0], prompt=asks[0].prompt[:10])]
    # SGLang takes a list of processors for one answer to each; the texts of the others share one.
    copies = rng.randint(2, TOGETHER) if not is_list and rng.random() < 0.2 else 1
    if path != "/generate":
        asks = [replace(asks[0], prompt=ask.prompt) for ask in asks]
    return Sent(
        "good",
        path,
        asks,
        copies,
        is_list,
        # The stream of a chat has no token ids.
        is_stream=not is_chat and rng.random() < 0.4,
        is_sampled=rng.random() < 0.2,
        tokens=rng.randint(1, LONGEST_ANSWER),
    )


#: Payload and parameters that are refused.
REFUSED: Sequence[tuple[Any, Any]] = (
    (wire.payload_for("os", "abort"), {"token_ids": [5]}),
    ('{"callable": "zz"}', {}),
    ("NoSuchProcessor", {}),
    (7, {}),
    ("DisallowedTokensLogitsProcessor", {"token_ids": [VOCAB_SIZE]}),
    ("DisallowedTokensLogitsProcessor", {"token_ids": "5"}),
    ("DisallowedTokensLogitsProcessor", {"token_ids": [[[5]]]}),
    ("DisallowedTokensLogitsProcessor", {"token_ids": [5] * 524_289}),
    ("DRYLogitProcessor", {"dry_base": 1e308, "__sglang_anything": 1}),
    ("LoopBreakerLogitProcessor", {"max_pattern_size": 10**9, "min_count": 2}),
    ("ChainLogitProcessor", {"chain": ["DRYLogitProcessor"] * 9}),
    (None, {"__sglang_reasoning_end_token_ids": [[1]]}),
)


def refused(rng: random.Random) -> Sent:
    """Return a request that is refused with HTTP 400."""
    sent = good(rng)
    payload, params = rng.choice(REFUSED)
    ask = Ask(sent.asks[0].prompt, None, params)
    return replace(sent, kind="refused", asks=[ask, *sent.asks[1:]], payload=payload)


def faulty(rng: random.Random) -> Sent:
    """Return a request whose processor fails: HTTP 500, or the end of a stream."""
    at = {"at": rng.randint(0, 20)}
    kinds: list[tuple[type, Params]] = [
        (recording.Raises, at),
        (recording.BansAll, at),
        (recording.WritesNaN, at),
        *((recording.Leaves, {**at, "what": what}) for what in recording.NEVER_RAISED),
    ]
    processor, params = rng.choice(kinds)
    ask = Ask([rng.randrange(258, VOCAB_SIZE)], processor, params)
    return Sent("faulty", "/generate", [ask], is_stream=rng.random() < 0.5)
