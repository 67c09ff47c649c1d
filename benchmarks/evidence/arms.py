"""The arms of each section, as requests to the servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import orjson
from tokenizers import Tokenizer

from benchmarks.evidence.answers import Ask, Kept
from benchmarks.evidence.prompts import PROSE, PUZZLES, TABLES
from demo.speaking import DIRECTORY, PACKAGES, chat
from sglang_lp import wire
from sglang_lp.client import attach

__all__ = ["SECTIONS", "encode", "loops", "words"]

OURS, OURS_SERIAL, DRAFTS = "this toolkit", "this toolkit, no overlap", "this toolkit, drafts"
STOCK, STOCK_SERIAL = "SGLang", "SGLang, no overlap"
STRICT = "SGLang, strict thinking"

#: Tokens of an answer, by section.
PROSE_TOKENS, TABLE_TOKENS, WORD_TOKENS, PUZZLE_TOKENS, CALL_TOKENS = 128, 256, 64, 160, 96
#: Of the n-grams, and tokens in which they may not come again.
NGRAM, WINDOW = 10, 256
#: The words, and for how many of them SGLang's class is asked: it takes one request at a time.
WORDS, ALONE = 100, 20
BUDGETS = (16, 64)
CLOSING = "\nI have thought enough, and this is my answer."
THINK, END_THINK = "<think>", "</think>"
#: Ends an answer: ``<|im_end|>``.
END = 2
#: Functions that a call can choose from: its own, and those of the questions after it.
FUNCTIONS, CALLS = 4, 60

_Arm = tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """Return the tokens of a text."""
    ids: list[int] = _tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def decode(ids: Sequence[int]) -> str:
    """Return the text of tokens."""
    text: str = _tokenizer().decode(list(ids), skip_special_tokens=True)
    return text


def _body(prompt: str, tokens: int, **sampling: Any) -> dict[str, Any]:
    return {
        "input_ids": encode(prompt),
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, **sampling},
    }


def none(body: dict[str, Any]) -> dict[str, Any]:
    return body


def ours(processor: Any, **params: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: attach(processor, **params).generate_body(body)


def stock(
    name: str, module: str = "sglang.srt.sampling.custom_logit_processor", **params: Any
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    payload = wire.payload_for(module, name)

    def add(body: dict[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"] | {"custom_params": params}
        return body | {"custom_logit_processor": payload, "sampling_params": sampling}

    return add


def _sampling(**more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: body | {"sampling_params": body["sampling_params"] | more}


_OCR = "DeepseekOCRNoRepeatNGramLogitProcessor"
_NGRAM: Mapping[str, Any] = {"ngram_size": NGRAM, "window_size": WINDOW}
_LOOP: Mapping[str, Any] = {"min_pattern_size": 4, "max_pattern_size": 64, "min_count": 3}
LOOPS: Mapping[str, _Arm] = {
    "none": (OURS, none),
    "repetition penalty 1.1": (OURS, _sampling(repetition_penalty=1.1)),
    "DRY": (OURS, ours("DRYLogitProcessor", dry_multiplier=0.8)),
    "no-repeat n-gram": (OURS, ours(_OCR, **_NGRAM)),
    "LoopBreaker, ban": (OURS, ours("LoopBreakerLogitProcessor", **_LOOP)),
    "LoopBreaker, end": (OURS, ours("LoopBreakerLogitProcessor", **_LOOP, action="end")),
    "no-repeat n-gram, SGLang's": (STOCK, stock(_OCR, **_NGRAM)),
    "no-repeat n-gram, SGLang's, no overlap": (STOCK_SERIAL, stock(_OCR, **_NGRAM)),
    "no-repeat n-gram, no overlap": (OURS_SERIAL, ours(_OCR, **_NGRAM)),
}
#: At 0.7, and for tables, only what differs there.
_SOME = tuple(LOOPS)[:6]


def loops(_kept: Kept) -> Iterator[Ask]:
    """Prose, greedy."""
    for at, prompt in enumerate(PROSE):
        for arm, (server, add) in LOOPS.items():
            body = add(_body(chat(prompt), PROSE_TOKENS))
            yield Ask("loops", arm, at, server, body)


def sampled(_kept: Kept) -> Iterator[Ask]:
    """Prose, at a temperature of 0.7."""
    for at, prompt in enumerate(PROSE):
        for arm in _SOME:
            server, add = LOOPS[arm]
            body = add(_body(chat(prompt), PROSE_TOKENS, temperature=0.7))
            yield Ask("sampled", arm, at, server, body)


def tables(_kept: Kept) -> Iterator[Ask]:
    """Tables; no n-gram rule counts what every cell is made of."""
    cells = sorted(set(chain(*map(encode, ("<td></td>", "<tr></tr>", "\n  <", "> <", "\n    <")))))
    arms = {name: LOOPS[name] for name in _SOME} | {
        "no-repeat n-gram, cells free": (OURS, ours(_OCR, **_NGRAM, whitelist_token_ids=cells))
    }
    for at, prompt in enumerate(TABLES):
        for arm, (server, add) in arms.items():
            body = add(_body(chat(prompt, "<table>\n"), TABLE_TOKENS))
            yield Ask("tables", arm, at, server, body)


def words(kept: Kept) -> dict[int, str]:
    """Return for a prompt a word that its answer holds, a different one for each."""
    found: dict[int, str] = {}
    free = (ask for ask in loops(kept) if ask.arm == "none")
    for ask in free:
        answer = kept.get(ask)
        said = re.findall(r"\b[a-z]{4,}\b", decode(answer.output_ids[:40]) if answer else "")
        fresh = [word for word in said if word not in found.values()]
        if fresh and len(found) < WORDS:
            found[ask.prompt] = max(fresh, key=lambda word: (said.count(word), len(word), word))
    return found


def bans(kept: Kept) -> Iterator[Ask]:
    """Each prompt with a word banned that its answer held."""
    for order, (at, word) in enumerate(words(kept).items()):
        spelled = [encode(word), encode(f" {word}")]
        ids, lengths = [*chain(*spelled)], [*map(len, spelled)]
        biased = {str(token): -100.0 for token in sorted(set(ids))}
        arms: Mapping[str, _Arm] = {
            "none": (OURS, none),
            "`bad_words` by token": (
                OURS,
                ours("BadWordsLogitProcessor", token_ids=ids, lengths=lengths),
            ),
            "`logit_bias`": (OURS, _sampling(logit_bias=biased)),
            "`words`": (OURS, ours("BadWordsLogitProcessor", words=[word], ignore_case=True)),
            "`words`, `whole_words`": (
                OURS,
                ours("BadWordsLogitProcessor", words=[word], ignore_case=True, whole_words=True),
            ),
        }
        body = _body(chat(PROSE[at]), WORD_TOKENS)
        for arm, (server, add) in arms.items():
            yield Ask("bans", arm, at, server, add(body), judged=True)
        if order < ALONE:
            add = stock("DisallowedTokensLogitsProcessor", token_ids=sorted(set(ids)))
            yield Ask("bans", "SGLang's class", at, STOCK, add(body), alone=True)


def budget(tokens: int, **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    given = {"thinking_start": THINK, "thinking_end": END_THINK, **more}
    return ours("ThinkingBudgetLogitProcessor", thinking_budget=tokens, **given)


def stock_budget(tokens: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return stock("FirstTokenBudget", "benchmarks.evidence.stock_budget", thinking_budget=tokens)


def _strict(tokens: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Ask for strict thinking, which takes its budget from ``custom_params``."""
    more = _sampling(custom_params={"thinking_budget": tokens})
    return lambda body: more(body) | {"require_reasoning": True}


def budgets(_kept: Kept) -> Iterator[Ask]:
    """Blocks that the prompt has opened."""
    arms: dict[str, _Arm] = {"none": (OURS, none)}
    for tokens in BUDGETS:
        arms[f"{tokens}"] = (OURS, budget(tokens))
        arms[f"{tokens}, with a closing"] = (OURS, budget(tokens, closing=CLOSING))
        arms[f"{tokens}, the answer's end closes"] = (OURS, budget(tokens, eos_token_ids=[END]))
        arms[f"{tokens}, drafts"] = (DRAFTS, budget(tokens))
        arms[f"{tokens}, SGLang's class"] = (STOCK, stock_budget(tokens))
        arms[f"{tokens}, strict thinking"] = (STRICT, _strict(tokens))
    for at, prompt in enumerate(PUZZLES):
        for arm, (server, add) in arms.items():
            body = add(_body(chat(prompt, f"{THINK}\n"), PUZZLE_TOKENS))
            yield Ask("budgets", arm, at, server, body)


@cache
def questions() -> Sequence[Mapping[str, Any]]:
    """Return questions with the functions that may answer them, of which the first is right."""
    file = PACKAGES / "bfcl_eval/data/BFCL_v4_simple_python.json"
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    # One after the other they are about the same: distant ones tell functions apart.
    step = len(lines) // CALLS
    found = []
    for at in range(CALLS):
        one, *others = (lines[(at * step + 7 * away) % len(lines)] for away in range(FUNCTIONS))
        functions = [one["function"][0], *(other["function"][0] for other in others)]
        asked = one["question"][0][0]["content"]
        found.append({"asked": asked, "functions": functions, "right": functions[0]["name"]})
    return found


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name", "arguments"],
}


def calls(_kept: Kept) -> Iterator[Ask]:
    """Questions of BFCL with four functions to choose from."""
    for at, one in enumerate(questions()):
        names = sorted(function["name"] for function in one["functions"])
        told = "\n".join(
            f"{function['name']}({', '.join(function['parameters']['properties'])}): "
            f"{function['description'].split('. ')[0]}"
            for function in sorted(one["functions"], key=lambda function: function["name"])
        )
        ask = (
            f"You can call one of these functions:\n{told}\n\n{one['asked']}\n\n"
            'Answer with the call only, as JSON: {"name": ..., "arguments": {...}}'
        )
        call, name = _body(chat(ask), CALL_TOKENS), _body(chat(ask, '{"name": "'), 24)
        thought = _body(chat(ask, f"{THINK}\n"), CALL_TOKENS + max(BUDGETS))
        json = orjson.dumps(SCHEMA).decode()
        choice = ours("ChoiceLogitProcessor", choices=names)
        regex = _sampling(regex="[A-Za-z0-9_.]+")
        yield Ask("calls", "free", at, OURS, call)
        yield Ask("calls", "grammar", at, OURS, _sampling(json_schema=json)(call))
        for tokens in (0, *BUDGETS):
            closed = budget(tokens, closing="\nThe call:")(thought)
            yield Ask("calls", f"budget {tokens}", at, OURS, closed)
        yield Ask("calls", "name, free", at, OURS, name)
        yield Ask("calls", "name, `ChoiceLogitProcessor`", at, OURS, choice(name))
        yield Ask("calls", "name, with a grammar beside it", at, OURS, choice(regex(name)))


#: What is asked for, and the share of the time that it gets.
SECTIONS: Mapping[str, tuple[Callable[[Kept], Iterator[Ask]], float]] = {
    "loops": (loops, 0.40),
    "bans": (bans, 0.10),
    "budgets": (budgets, 0.10),
    "calls": (calls, 0.10),
    "sampled": (sampled, 0.22),
    "tables": (tables, 0.08),
}
