"""Processors of many kinds, each with an oracle that reads the whole true history.

An oracle takes a row of logits, the parameters, the prompt and the output so far, and returns the
row as the processor must leave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    ChainLogitProcessor,
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History, Request
from support.oracles.definitions import thought

if TYPE_CHECKING:
    from sglang_lp.edits import Edits

VOCAB = 11
START, END, NEW_LINE, EOS = 1, 2, 3, 4
PAD = 1_000_003
INF = math.inf

Row = list[float]
Tokens = Sequence[int]
Oracle = Callable[[Row, Mapping[str, Any], Tokens, Tokens], Row]


class Kind(NamedTuple):
    """A processor, its ``custom_params`` and its oracle."""

    processor: type[LogitProcessor]
    params: Mapping[str, Any]
    oracle: Oracle


# Processors of the tests' own


class Recorder(LogitProcessor):
    """Bans what a checksum of the whole history says; its state is all it was told."""

    def start(self, request: Request) -> tuple[list[int], list[int]]:
        """Keep the prompt."""
        return [*request.prompt_ids], []

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Keep the tokens."""
        request.state[1].extend(token_ids)

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban one token; fail if it was told another history than the request shows."""
        prompt_ids, output_ids = request.state
        if output_ids != [*request.output_ids] or len(output_ids) != request.position:
            raise ValueError(f"told {output_ids}, shown {[*request.output_ids]}")
        edits.ban([checksum(prompt_ids, output_ids)])


class Counter(LogitProcessor):
    """Needs to know how many tokens there are, and no more."""

    needs = History.POSITION

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban one token."""
        edits.ban([request.position % VOCAB])


class Sleeper(LogitProcessor):
    """Looks at every fourth token, and not at all after the twentieth."""

    start = Recorder.start
    advance = Recorder.advance

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban one token at a time."""
        if request.position > 20:  # noqa: PLR2004 - see the class
            edits.rest()
            return
        if request.position % 4 == 0:
            edits.ban([checksum(*request.state)])
        edits.wake_at(request.position // 4 * 4 + 4)


def checksum(prompt: Tokens, output: Tokens) -> int:
    """Return a token that depends on every token of the history."""
    return sum(i * token_id for i, token_id in enumerate([*prompt, *output], 1)) % VOCAB


# Oracles


def banned(row: Row, ids: Collection[int]) -> Row:
    """Return the row without these tokens."""
    return [-INF if i in ids else x for i, x in enumerate(row)]


def forced(row: Row, token_id: int) -> Row:
    """Return the row with one possible token."""
    return [0.0 if i == token_id else -INF for i in range(len(row))]


def disallowed(row: Row, params: Mapping[str, Any], _prompt: Tokens, _output: Tokens) -> Row:
    """Oracle of the disallowed tokens."""
    return banned(row, params["token_ids"])


def forced_sequence(row: Row, params: Mapping[str, Any], _prompt: Tokens, output: Tokens) -> Row:
    """Oracle of the forced sequence."""
    sequence = [*params["token_ids"]]
    if len(output) < len(sequence):
        return forced(row, sequence[len(output)])
    return forced(row, params["eos_token_ids"][0]) if "eos_token_ids" in params else row


def no_repeat_ngram(row: Row, params: Mapping[str, Any], prompt: Tokens, output: Tokens) -> Row:
    """Oracle of the n-gram rule."""
    n, tokens = params["ngram_size"], [*prompt, *output]
    window = tokens[-params["window_size"] :]
    ngrams = [window[i : i + n] for i in range(len(window) - n + 1)]
    repeated = {gram[-1] for gram in ngrams if gram[:-1] == tokens[len(tokens) - n + 1 :]}
    return banned(row, repeated - {*params.get("whitelist_token_ids", ())})


def open_for(prompt: Tokens, output: Tokens) -> int | None:
    """Return how many tokens the open block has; ``None`` without one."""
    return thought(prompt, output, (START, END, NEW_LINE))


def thinking_budget(row: Row, params: Mapping[str, Any], prompt: Tokens, output: Tokens) -> Row:
    """Oracle of a plain thinking budget."""
    length = open_for(prompt, output)
    if length is None or length < params["thinking_budget"]:
        return row
    new_line = params.get("new_line_token_id")
    if new_line is None or output[-1:] == [new_line]:
        return forced(row, END)
    return forced(row, new_line)


def bad_words(row: Row, params: Mapping[str, Any], _prompt: Tokens, output: Tokens) -> Row:
    """Oracle of the bad words."""
    ids, words = [*params["token_ids"]], []
    for length in params["lengths"]:
        words.append(ids[:length])
        del ids[:length]
    ends = [word[-1] for word in words if [*output][len(output) - len(word) + 1 :] == word[:-1]]
    return banned(row, ends)


def sleeper(row: Row, _params: Mapping[str, Any], prompt: Tokens, output: Tokens) -> Row:
    """Oracle of :class:`Sleeper`."""
    due = len(output) % 4 == 0 and len(output) <= 20  # noqa: PLR2004 - as there
    return banned(row, [checksum(prompt, output)]) if due else row


def recorder(row: Row, _params: Mapping[str, Any], prompt: Tokens, output: Tokens) -> Row:
    """Oracle of :class:`Recorder`."""
    return banned(row, [checksum(prompt, output)])


def counter(row: Row, _params: Mapping[str, Any], _prompt: Tokens, output: Tokens) -> Row:
    """Oracle of :class:`Counter`."""
    return banned(row, [len(output) % VOCAB])


def budget(tokens: int, *, new_line: bool = True) -> Kind:
    """Return a thinking budget."""
    ids = {"thinking_start_token_id": START, "thinking_end_token_id": END}
    if new_line:
        ids["new_line_token_id"] = NEW_LINE
    return Kind(ThinkingBudgetLogitProcessor, {"thinking_budget": tokens, **ids}, thinking_budget)


def ngram(size: int, window: int, *whitelist: int) -> Kind:
    """Return an n-gram rule."""
    params = {"ngram_size": size, "window_size": window, "whitelist_token_ids": [*whitelist]}
    return Kind(DeepseekOCRNoRepeatNGramLogitProcessor, params, no_repeat_ngram)


def words(*sequences: Tokens) -> Kind:
    """Return bad words."""
    ids = [token_id for sequence in sequences for token_id in sequence]
    params = {"token_ids": ids, "lengths": [*map(len, sequences)]}
    return Kind(BadWordsLogitProcessor, params, bad_words)


def chain(*kinds: Kind) -> Kind:
    """Return a chain of kinds that only ban, so that any order of the oracles will do."""
    params: dict[str, Any] = {"chain": [kind.processor.__name__ for kind in kinds]}
    for place, kind in enumerate(kinds):
        params |= {f"{place}.{name}": value for name, value in kind.params.items()}

    def oracle(row: Row, _params: Mapping[str, Any], prompt: Tokens, output: Tokens) -> Row:
        for kind in kinds:
            row = kind.oracle(row, kind.params, prompt, output)
        return row

    return Kind(ChainLogitProcessor, params, oracle)


KINDS: list[Kind | None] = [
    None,
    Kind(DisallowedTokensLogitsProcessor, {"token_ids": [5, 6]}, disallowed),
    Kind(DisallowedTokensLogitsProcessor, {"token_ids": [0]}, disallowed),
    Kind(ForcedSequenceLogitProcessor, {"token_ids": [7, 7, 3, 7]}, forced_sequence),
    Kind(
        ForcedSequenceLogitProcessor,
        {"token_ids": [7, 8], "eos_token_ids": [EOS]},
        forced_sequence,
    ),
    ngram(1, 4),
    ngram(2, 6, 3),
    ngram(3, 3),
    ngram(2, 100),
    *(budget(tokens) for tokens in (0, 1, 2, 3, 6)),
    *(budget(tokens, new_line=False) for tokens in (0, 1, 3)),
    words([5], [6, 7], [7, 8, 9]),
    chain(Kind(DisallowedTokensLogitsProcessor, {"token_ids": [0]}, disallowed), ngram(2, 6)),
    Kind(Recorder, {}, recorder),
    Kind(Counter, {}, counter),
    Kind(Sleeper, {}, sleeper),
]
BUDGETS = [kind for kind in KINDS if kind and kind.oracle is thinking_budget]


def expected(kind: Kind | None, row: Row, prompt: Tokens, output: Tokens) -> Row:
    """Return a row as it must be after its processor."""
    return row if kind is None else kind.oracle(row, kind.params, prompt, [*output])
