"""The most expensive known requests that the default policy accepts.

An attacker chooses the parameters, the prompt and the generated tokens of each request. Generated
tokens count as chosen because a prompt can make a model repeat anything.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from sglang_lp.server.front.bounds import MAX_CHOICES, MAX_ENTRIES, MAX_LINKS, entries

__all__ = ["BATCH", "LONGEST", "SETS", "THINKING", "VOCAB", "Dear", "dearest"]

#: Logits in a row: Qwen3's.
VOCAB = 151_936
#: Most tokens of a prompt.
LONGEST = 131_072

#: The sets of the catalogue ``items``: as many as one request may name.
SETS = [f"set {number}" for number in range(64)]

#: The last two tokens of the vocabulary: a block of thinking begins and ends with them.
THINKING = ("<think>", "</think>")

#: Rows of a large batch. Of a longest prompt 128 copies are accepted.
BATCH = 256

Tokens: TypeAlias = "array[int]"


@dataclass(frozen=True)
class Dear:
    """A request to measure.

    Attributes:
        key: Its name in the results.
        processor: Name of the built-in.
        params: ``custom_params`` of each copy, if all have the same.
        prompt: Returns the tokens of the prompt.
        output: Returns the tokens that are generated, over and over.
        copies: Rows of the batch that it becomes.
        texts: Whether the copies are texts of their own, admitted one by one, and not ``n``.
        warm: Tokens that are generated before steps are measured.
        steps: Steps that are measured, as far as there is time.
        others: Returns ``custom_params`` of each copy by its number, where they differ.
        other_prompts: Returns the tokens of the prompt of each, where they differ.
    """

    key: str
    processor: str
    params: Mapping[str, Any]
    prompt: Callable[[], Tokens]
    output: Callable[[], Tokens]
    copies: int = 1
    texts: bool = False
    warm: int = 0
    steps: int = 60
    others: Callable[[int], Mapping[str, Any]] | None = None
    other_prompts: Callable[[int], Tokens] | None = None

    def params_of(self, copy: int) -> Mapping[str, Any]:
        """Return ``custom_params`` of a copy."""
        return self.params if self.others is None else self.others(copy)

    def twin(self) -> Dear:
        """Return an equal request that shares no object with this request."""
        others = self.others

        return replace(
            self,
            params=_shorter(self.params),
            prompt=lambda: self.prompt()[:-1] or self.prompt(),
            others=None if others is None else lambda copy: _shorter(others(copy)),
            other_prompts=None,
        )


def _shorter(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters whose lists have one sequence, text or id less."""
    found = {**params}
    for name, value in params.items():
        if not isinstance(value, list) or len(value) < 2 or name == "chain":
            continue
        lengths = params.get(f"{name.removesuffix('token_ids')}lengths")
        if lengths is None:
            found[name] = value[:-1]
        elif name.endswith("token_ids"):
            found[name] = value[: -lengths[-1]]
        else:
            found[name] = value[:-1]
    return found


def _most(params: Mapping[str, Any]) -> int:
    """Return how many copies of a request are accepted, or as many as a large batch has."""
    links = len(params.get("chain", ()))
    return min(BATCH, MAX_ENTRIES // max(1, entries(params)), MAX_LINKS // max(1, links))


# Texts


def _short() -> Tokens:
    return array("q", range(1000, 1016))


def _item() -> Tokens:
    """Return the tokens of item 1 of the catalogue of :mod:`benchmarks.bounds.run`."""
    return array("q", [1, 8192, 16_384])


def _in_boxes() -> Tokens:
    """Boxes one after the other, in which each token but the last has a long list."""
    return array("q", [3, 1000, 1001, 1002, 1003, 4] * 100)


def _fresh() -> Tokens:
    """Tokens of which none comes twice, and none is in a prompt."""
    return array("q", range(140_000, 145_000))


def _distinct(count: int) -> Callable[[], Tokens]:
    return lambda: array("q", random.Random(count).sample(range(VOCAB - 20_000), count))


def _random(alphabet: int, count: int = LONGEST) -> Callable[[], Tokens]:
    return lambda: array(
        "q", random.Random(alphabet).choices(range(1000, 1000 + alphabet), k=count)
    )


def _over_and_over(pattern: range | list[int], count: int = LONGEST) -> Callable[[], Tokens]:
    return lambda: (array("q", pattern) * (count // len(pattern) + 1))[:count]


def _one(count: int = LONGEST) -> Callable[[], Tokens]:
    return _over_and_over([7], count)


def _twice_with_slips() -> Tokens:
    """Return half of a longest prompt twice, with every 270th token replaced."""
    half = _distinct(LONGEST // 2)()
    return half + array(
        "q", (VOCAB - 1 - at % 20_000 if at % 270 == 0 else id_ for at, id_ in enumerate(half))
    )


def _after_one(count: int = LONGEST) -> Callable[[], Tokens]:
    """Token 7 before every one of many others."""
    return lambda: array(
        "q", [token for other in range(1000, 1000 + count // 2) for token in (7, other)]
    )


# Parameters


def _ids(count: int, first: int = 100) -> list[int]:
    """Ids all over the vocabulary."""
    return random.Random(first).sample(range(VOCAB), count)


def _boxes(copy: int) -> dict[str, Any]:
    """Name as many coordinates as one request may have, other ones for each copy."""
    first = 10 + copy
    return {
        "box_start_token_id": 3,
        "box_end_token_id": 4,
        "none_token_id": 5,
        "coord_start_token_id": first,
        "coord_end_token_id": first + 1_023,
    }


def _words(sequences: list[list[int]]) -> dict[str, Any]:
    return {
        "token_ids": [token for sequence in sequences for token in sequence],
        "lengths": [*map(len, sequences)],
    }


def _single_words(first: int = 0, count: int = 4000) -> dict[str, Any]:
    return _words([[first + i] for i in range(count)])


def _runs_of_one() -> dict[str, Any]:
    """Words that all end at every state of the longest: token 7 some times, then another."""
    return _words([[7] * length + [2000 + length] for length in range(89)])


def _chain(*links: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    params: dict[str, Any] = {"chain": [f"{name}LogitProcessor" for name, _ in links]}
    for place, (_, own) in enumerate(links):
        params |= {f"{place}.{name}": value for name, value in own.items()}
    return params


_NGRAM = "DeepseekOCRNoRepeatNGramLogitProcessor"
_EVER = 2**31 - 1
_THINK = {"thinking_start_token_id": 3, "thinking_end_token_id": 4, "new_line_token_id": 5}
_ENDS = [*range(145_000, 146_024)]


def _lists() -> list[Dear]:
    ids = _ids(65_536)
    found = []
    for name in ("AllowedTokensLogitProcessor", "DisallowedTokensLogitsProcessor"):
        short = name.partition("Tokens")[0].lower()
        for copies, count in ((1, 65_536), (4, 65_536), (5, 65_536), (64, 4096), (256, 1024)):
            found.append(
                Dear(
                    f"{short}-{count}-x{copies}",
                    name,
                    {"token_ids": ids[:count]},
                    _short,
                    _fresh,
                    copies,
                    texts=True,
                )
            )
    found.append(
        Dear(
            "allowed-65536-others-x4",
            "AllowedTokensLogitProcessor",
            {},
            _short,
            _fresh,
            4,
            texts=True,
            others=lambda copy: {"token_ids": _ids(65_536, copy)},
        )
    )
    found.append(
        Dear(
            "min-length-1024-x256",
            "MinLengthLogitProcessor",
            {"min_tokens": _EVER, "end_token_ids": _ENDS},
            _short,
            _fresh,
            256,
        )
    )
    hot = {"temperature": 2.0}
    found.append(Dear("temperature-x256", "TemperatureLogitProcessor", hot, _short, _fresh, 256))
    found.append(Dear("top-n-sigma-x256", "TopNSigmaLogitProcessor", {}, _short, _fresh, 256))
    found.append(Dear("watermark-x256", "WatermarkLogitProcessor", {}, _short, _fresh, 256))
    for copies in (1, 256):
        ramp = {"token_ids": _ids(1024), "bias": 0.5, "final_bias": 9.5, "end": _EVER}
        found.append(
            Dear(
                f"scheduled-bias-1024-x{copies}",
                "ScheduledBiasLogitProcessor",
                ramp,
                _short,
                _fresh,
                copies,
            )
        )
    found += [
        Dear(
            f"cite-from-prompt-x{copies}",
            "CiteFromPromptLogitProcessor",
            {"eos_token_ids": _ENDS[:64]},
            _distinct(LONGEST),
            _fresh,
            copies,
        )
        for copies in (1, 128)
    ]
    found += [
        Dear(
            f"boxes-{key}x{copies}",
            "LocateAnythingBoxGrammarLogitProcessor",
            _boxes(0),
            _short,
            _in_boxes,
            copies,
            texts=True,
            others=others,
        )
        for key, copies, others in (("", 1, None), ("", BATCH, None), ("others-", BATCH, _boxes))
    ]
    found.append(
        Dear(
            "gen-length-64-x256",
            "GenLengthLogitProcessor",
            {"bias": 0.01, "eos_token_ids": _ENDS[:64]},
            _short,
            _fresh,
            256,
        )
    )
    found.append(
        Dear(
            "forced-sequence-65536-x4",
            "ForcedSequenceLogitProcessor",
            {"token_ids": ids},
            _short,
            lambda: array("q", ids),
            4,
            texts=True,
        )
    )
    return found


def _sequences() -> list[Dear]:
    eos = {"eos_token_ids": _ENDS}
    kinds: list[tuple[str, str, dict[str, Any], Callable[[], Tokens]]] = [
        ("bad-words-single", "BadWordsLogitProcessor", _single_words(), _fresh),
        ("bad-words-runs", "BadWordsLogitProcessor", _runs_of_one(), _one(4096)),
        (
            "bad-words-after-one",
            "BadWordsLogitProcessor",
            _words([[7, other] for other in range(2000, 4048)]),
            _one(4096),
        ),
        (
            "catalogue-excluded",
            "CatalogueLogitProcessor",
            {"catalogue": "items", "exclude": [*range(0, 200_000, 20)], "max_items": _EVER},
            _item,
        ),
        (
            "catalogue-only",
            "CatalogueLogitProcessor",
            {"catalogue": "items", "only": [*range(1, 200_000, 20)], "max_items": _EVER},
            _item,
        ),
        ("choice-single", "ChoiceLogitProcessor", _single_words(), _one(4096)),
        ("forced-words-single", "ForcedWordsLogitProcessor", _single_words() | eos, _fresh),
        (
            "forced-words-long",
            "ForcedWordsLogitProcessor",
            _words([[7] * 2047 + [8], [7] * 2047 + [9]]) | eos,
            _over_and_over([*[7] * 2046, 8], 4096),
        ),
        (
            "trigger-4096",
            "TriggerPhraseLogitProcessor",
            {"trigger_token_ids": [7] * 4095 + [8], "phrase_token_ids": [9]},
            _over_and_over([*[7] * 4094, 9], 8192),
        ),
        (
            "trigger-before-1024",
            "TriggerPhraseLogitProcessor",
            {"before_token_ids": _ENDS, "phrase_token_ids": _ids(65_536)},
            _fresh,
        ),
    ]
    return [
        Dear(
            f"{key}-x{copies}",
            name,
            params,
            _short,
            output,
            copies,
            texts=True,
            steps=5000 if key == "trigger-4096" else 60,
        )
        for key, name, params, output in kinds
        for copies in (1, _most(params))
    ]


def _subset(copy: int) -> dict[str, Any]:
    """Name half of the sets, other ones for each of as many as one request may have."""
    half = random.Random(copy % MAX_CHOICES).sample(SETS, len(SETS) // 2)
    return {"catalogue": "items", "subset": ["|".join(half)], "max_items": _EVER}


def _excluded(copy: int) -> dict[str, Any]:
    """Exclude items, other ones for each of as many as one request may have."""
    some = random.Random(copy % MAX_CHOICES).sample(range(200_000), MAX_ENTRIES // BATCH)
    return {"catalogue": "items", "exclude": some, "max_items": _EVER}


def _catalogues() -> list[Dear]:
    return [
        Dear(
            f"{key}-x{copies}",
            "CatalogueLogitProcessor",
            others(0),
            _short,
            _item,
            copies,
            texts=True,
            others=others,
        )
        for key, others in (
            ("catalogue-subset", _subset),
            ("catalogue-exclude-others", _excluded),
        )
        for copies in (1, MAX_CHOICES, BATCH)
    ]


def _repetitions() -> list[Dear]:
    found = [
        Dear(
            f"dry-one-token-x{copies}",
            "DRYLogitProcessor",
            {"dry_penalty_last_n": 2048},
            _one(),
            _one(),
            copies,
        )
        for copies in (1, 32, 128)
    ]
    found += [
        Dear(
            f"loop-one-token-x{copies}",
            "LoopBreakerLogitProcessor",
            {"max_pattern_size": 1024, "min_count": 2},
            _short,
            _one(),
            copies,
            warm=1100,
        )
        for copies in (1, 32, 256)
    ]
    found += [
        Dear(
            f"loop-window-512-x{copies}",
            "LoopBreakerLogitProcessor",
            {
                "max_pattern_size": 1024,
                "min_count": 2,
                "min_new_share": 1.0,
                "ngram_size": 16,
                "window_size": 512,
            },
            _short,
            _one(),
            copies,
            warm=1100,
        )
        for copies in (1, 256)
    ]
    found += [
        Dear(
            "dry-many-followers",
            "DRYLogitProcessor",
            {"dry_penalty_last_n": 2048, "dry_allowed_length": 1},
            _after_one(),
            _one(),
        ),
        Dear(
            "dry-breakers-65536-x4",
            "DRYLogitProcessor",
            {"dry_penalty_last_n": 2048, "dry_sequence_breaker_ids": _ids(65_536)},
            _one(),
            _one(),
            4,
            texts=True,
        ),
        Dear(
            "dry-two-tokens-x32",
            "DRYLogitProcessor",
            {"dry_penalty_last_n": 2048, "dry_allowed_length": 1},
            _random(2),
            _random(2, 4096),
            32,
        ),
    ]
    return found


def _ngrams() -> list[Dear]:
    texts: list[tuple[str, int, Callable[[], Tokens], Callable[[], Tokens], tuple[int, ...]]] = [
        ("ngram-1-distinct", 1, _distinct(LONGEST), _fresh, (1, 16, 128)),
        ("ngram-1-distinct-64k", 1, _distinct(65_536), _fresh, (1, 16)),
        ("ngram-2-after-one", 2, _after_one(), _one(), (1, 16, 128)),
        ("ngram-3-random", 3, _random(1000), _random(1000, 4096), (1, 8, 32, 128, 129)),
        ("ngram-6-random", 6, _random(300), _random(300, 4096), (1,)),
        ("ngram-256-random", 256, _random(300), _random(300, 4096), (1, 32)),
        ("ngram-256-slips", 256, _twice_with_slips, _fresh, (1, 32)),
        ("ngram-18-random-two", 18, _random(2), _random(2, 4096), (1, 32)),
        ("ngram-30-loop", 30, _over_and_over(range(1000, 1040)), _over_and_over(range(1000, 1040)),
         (1, 32)),
        ("ngram-4-one-token", 4, _one(), _one(), (1, 32, 128)),
    ]  # fmt: skip
    found = [
        Dear(
            f"{key}-x{copies}",
            _NGRAM,
            {"ngram_size": size, "window_size": _EVER},
            prompt,
            output,
            copies,
        )
        for key, size, prompt, output, counts in texts
        for copies in counts
    ]
    found += [
        Dear(
            f"{key}-others-x32",
            name,
            params,
            _random(1000),
            _random(1000, 4096),
            32,
            texts=True,
            other_prompts=lambda copy: _random(1000 + copy)(),
        )
        for key, name, params in (
            ("ngram-3", _NGRAM, {"ngram_size": 3, "window_size": _EVER}),
            ("ngram-30-90", _NGRAM, {"ngram_size": 30, "window_size": 90}),
            ("cite-from-prompt", "CiteFromPromptLogitProcessor", {"eos_token_ids": _ENDS[:64]}),
            ("dry", "DRYLogitProcessor", {"dry_penalty_last_n": 2048}),
        )
    ]
    found.append(
        Dear(
            "ngram-whitelist-65536-x4",
            _NGRAM,
            {"ngram_size": 1, "window_size": _EVER, "whitelist_token_ids": _ids(65_536)},
            _distinct(LONGEST),
            _fresh,
            4,
            texts=True,
        )
    )
    return found


def _thinking() -> list[Dear]:
    name = "ThinkingBudgetLogitProcessor"
    opened = array("q", [3])

    def begins() -> Tokens:
        return opened + _random(1000, LONGEST - 1)()

    prompts = [
        Dear(
            f"{key}-x{copies}",
            name,
            {**_THINK, "thinking_budget": _EVER},
            prompt,
            output,
            copies,
        )
        for key, prompt, output in (
            ("thinking-prompt", begins, _fresh),
            ("thinking-delimiters", _over_and_over([3, 4]), _over_and_over([3, 4], 4096)),
        )
        for copies in (32, 128)
    ]
    return [
        *prompts,
        Dear(
            "thinking-wakes-late-x256",
            name,
            {**_THINK, "thinking_budget": 10_000},
            lambda: opened,
            _fresh,
            256,
            steps=10_100,
        ),
        Dear(  # one token over and over: nearly a loop, at every step
            "thinking-loops-1024-x256",
            name,
            {**_THINK, "thinking_budget": _EVER, "max_pattern_size": 1024, "min_count": 1_000_000},
            lambda: opened,
            _one(),
            256,
            warm=1100,
        ),
        Dear(
            "thinking-soft-1000-x256",
            name,
            {
                **_THINK,
                "thinking_budget": _EVER,
                "soft_thinking_budget": 0,
                "soft_top_n": 1000,
                "eos_token_ids": [*range(145_000, 145_064)],
            },
            lambda: opened,
            _fresh,
            256,
        ),
        Dear(
            "thinking-wait-x256",
            name,
            {
                **_THINK,
                "thinking_budget": _EVER,
                "min_thinking_tokens": _EVER,
                "wait_token_id": 9,
                "max_waits": _EVER,
                "eos_token_ids": [*range(145_000, 145_064)],
            },
            lambda: opened,
            _fresh,
            256,
        ),
        Dear(
            "thinking-window-512-x256",
            name,
            {
                **_THINK,
                "thinking_budget": _EVER,
                "min_new_share": 1.0,
                "ngram_size": 16,
                "window_size": 512,
            },
            lambda: opened,
            _fresh,
            256,
            warm=600,
        ),
        Dear(
            "thinking-closing-1024-x256",
            name,
            {
                **_THINK,
                "thinking_budget": _EVER,
                "soft_thinking_budget": 0,
                "closing_token_ids": [7] * 1023 + [8],
            },
            lambda: opened,
            _over_and_over([*[7] * 1022, 9], 8192),
            256,
            steps=1100,
        ),
    ]


def _texts() -> list[Dear]:
    """Texts in place of ids: what they cost beyond these is finding out which tokens spell them."""
    some = random.Random(0)
    words = ["".join(some.choices("etaoinsh", k=8)) for _ in range(4_000)]
    like = [f"{'tea' * 80}{i:04}" for i in range(128)]
    accented = [f"{word[:5]}{some.choice('âêîôûñ')}" for word in words[:1536]]  # two forms each
    ends = {"eos_token_ids": [145_000]}
    kinds: list[tuple[str, str, dict[str, Any], Callable[[], Tokens]]] = [
        ("texts-bad-words", "BadWordsLogitProcessor", {"words": words}, _random(VOCAB, 4096)),
        ("texts-bad-words-like", "BadWordsLogitProcessor", {"words": like}, _random(VOCAB, 4096)),
        (
            "texts-whole-words",
            "BadWordsLogitProcessor",
            {"words": words, "whole_words": True, "ignore_case": True},
            _random(VOCAB, 4096),
        ),
        (
            "texts-normalize",
            "BadWordsLogitProcessor",
            {"words": accented, "normalize": True, "ignore_case": True},
            _random(VOCAB, 4096),
        ),
        (
            "texts-disallowed",
            "DisallowedTokensLogitsProcessor",
            {"texts": ["e", "t", "a"]},
            _random(VOCAB, 4096),
        ),
        (
            "texts-bias-words",
            "BiasWordsLogitProcessor",
            {"words": words[:256], "weights": [0.5] * 256, "max_times": _EVER},
            _random(VOCAB, 4096),
        ),
        (
            "texts-bias-words-like",
            "BiasWordsLogitProcessor",
            {"words": [text[:250] for text in like[:16]], "weights": [0.5] * 16},
            _random(VOCAB, 4096),
        ),
        (
            "texts-bias-words-runs",
            "BiasWordsLogitProcessor",
            {"words": ["a" * length for length in range(1, 90)], "weights": [0.5] * 89},
            _over_and_over([ord("a")], 4096),
        ),
        (
            "texts-tool-calls",
            "ToolCallLimitLogitProcessor",
            {
                "max_tool_calls": _EVER,
                "tool_call_starts": [text[:250] for text in like[:16]],
                "tool_call_end": like[0][:250],
            }
            | ends,
            _random(VOCAB, 4096),
        ),
        ("texts-choices", "ChoiceLogitProcessor", {"choices": words[:1000]}, _random(VOCAB, 4096)),
        ("texts-forced", "ForcedSequenceLogitProcessor", {"text": "te" * 2048}, _fresh),
        (
            "texts-forced-words",
            "ForcedWordsLogitProcessor",
            {"words": words[:500]} | ends,
            _random(VOCAB, 4096),
        ),
        (
            "texts-trigger",
            "TriggerPhraseLogitProcessor",
            {"trigger": "te" * 120, "phrase": "te" * 2000},
            _random(VOCAB, 4096),
        ),
        (
            "texts-script-allow",
            "ScriptLogitProcessor",
            {"scripts": ["Latin"], "mode": "allow"},
            _random(VOCAB, 4096),
        ),
        (
            "texts-script-ban",
            "ScriptLogitProcessor",
            {"scripts": ["Han"], "mode": "ban"},
            _random(VOCAB, 4096),
        ),
    ]
    return [
        Dear(f"{key}-x{copies}", name, params, _short, output, copies)
        for key, name, params, output in kinds
        for copies in (1, _most(params))
    ]


def _chains() -> list[Dear]:
    chain = "ChainLogitProcessor"
    half, other = _ids(65_536)[:32_768], _ids(65_536)[16_384:49_152]
    two = (("AllowedTokens", {"token_ids": half}), ("AllowedTokens", {"token_ids": other}))
    loop = ("LoopBreaker", {"max_pattern_size": 8, "min_count": 100})
    bans = ("DeepseekOCRNoRepeatNGram", {"ngram_size": 1, "window_size": _EVER})
    eight = {
        "bad-words": [("BadWords", _single_words(4000 * link)) for link in range(8)],
        "choice": [("Choice", _single_words()) for _ in range(8)],
        "forced-words": [
            ("ForcedWords", _single_words() | {"eos_token_ids": [150_000]}) for _ in range(8)
        ],
    }
    found = [
        Dear(f"chain-8-{name}-x{copies}", chain, _chain(*links), _short, _one(4096), copies,
             texts=True)
        for name, links in eight.items()
        for copies in (1, _most(_chain(*links)))
    ]  # fmt: skip
    few = [("ForcedWords", _single_words(20 * i, 20) | {"eos_token_ids": [150_000]})
           for i in range(8)]  # fmt: skip
    words = _chain(*few)
    found.append(Dear("chain-8-few-words", chain, words, _short, _one(4096), _most(words)))
    bias = {"bias": 0.5, "final_bias": 9.5, "end": _EVER}
    loops = (("LoopBreaker", {"max_pattern_size": 1024, "min_count": 2}),) * 8
    kinds: list[tuple[str, dict[str, Any], Callable[[], Tokens], Callable[[], Tokens], int]] = [
        ("allowed-allowed", _chain(*two), _short, _fresh, 0),
        ("loop-allowed-allowed", _chain(loop, *two), _short, _fresh, 0),
        ("8-scheduled-bias",
         _chain(*(("ScheduledBias", {"token_ids": _ids(1024, i), **bias}) for i in range(8))),
         _short, _fresh, 0),
        ("ngram-1-allowed", _chain(bans, ("AllowedTokens", {"token_ids": _ids(65_536)})),
         _distinct(65_536), _fresh, 0),
        ("reads-all",
         _chain(("DeepseekOCRNoRepeatNGram", {"ngram_size": 3, "window_size": _EVER}),
                ("DRY", {"dry_penalty_last_n": 2048, "dry_allowed_length": 1}),
                ("ThinkingBudget", {**_THINK, "thinking_budget": _EVER}), *loops[:5]),
         _random(2), _random(2, 4096), 0),
        ("8-loops", _chain(*loops), _short, _one(), 1100),
        ("8-triggers",
         _chain(*(("TriggerPhrase",
                   {"before_token_ids": [*range(145_000 + 900 * i, 145_900 + 900 * i)],
                    "phrase_token_ids": [7]}) for i in range(7))),
         _short, _fresh, 0),
    ]  # fmt: skip
    return found + [
        Dear(f"chain-{key}-x{copies}", chain, params, prompt, output, copies, warm=warm)
        for key, params, prompt, output, warm in kinds
        for copies in (1, _most(params))
    ]


def _phased() -> list[Dear]:
    """Rules in a phase that is open, in one that is closed, and in one that begins all the time."""
    start, end = VOCAB - 2, VOCAB - 1
    kinds: list[tuple[str, str, dict[str, Any], Callable[[], Tokens]]] = [
        ("dry", "DRYLogitProcessor", {"dry_penalty_last_n": 2048}, _one(4096)),
        ("ngram-3", _NGRAM, {"ngram_size": 3, "window_size": _EVER}, _random(1000, 4096)),
        ("bad-words-runs", "BadWordsLogitProcessor", _runs_of_one(), _one(4096)),
        (
            "loop",
            "LoopBreakerLogitProcessor",
            {"max_pattern_size": 1024, "min_count": 2},
            _one(4096),
        ),
        (
            "8-links",
            "ChainLogitProcessor",
            _chain(*[("BadWords", _single_words(4000 * link)) for link in range(8)]),
            _fresh,
        ),
    ]
    phases: tuple[tuple[str, Callable[[Tokens], Tokens]], ...] = (
        ("open", lambda output: array("q", [start]) + output),
        ("closed", lambda output: output),
        ("to-and-fro", lambda output: array("q", [start, output[0], end, output[1]]) * 1000),
    )

    def outputs(wrap: Callable[[Tokens], Tokens], output: Callable[[], Tokens]) -> Tokens:
        return wrap(output())

    def within(params: Mapping[str, Any]) -> dict[str, Any]:
        links = range(len(params.get("chain", ())))
        return (
            {**params, **{f"{place}.where": "thinking" for place in links}}
            if links
            else {
                **params,
                "where": "thinking",
            }
        )

    return [
        Dear(
            f"phase-{phase}-{key}-x{copies}",
            name,
            within(params),
            _short,
            partial(outputs, wrap, output),
            copies,
            texts=True,
        )
        for key, name, params, output in kinds
        for phase, wrap in phases
        for copies in (1, _most(params))
    ]


def dearest() -> list[Dear]:
    """Return every request to measure."""
    return [
        *_lists(),
        *_sequences(),
        *_catalogues(),
        *_repetitions(),
        *_ngrams(),
        *_thinking(),
        *_chains(),
        *_phased(),
        *_texts(),
    ]
