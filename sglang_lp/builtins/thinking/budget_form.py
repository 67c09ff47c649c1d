"""The form of a thinking budget, for the steps at which no delimiter is begun."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins.thinking.progress import ThinkingState
from sglang_lp.builtins.thinking.rules import LONGEST_SLEEP, close_by, tokens_left
from sglang_lp.errors import RequestError
from sglang_lp.forms.form import FEWEST_STEPS
from sglang_lp.forms.held import Held, HeldForm, HeldQuestion
from sglang_lp.text.characters import MOST_LACKING, entering, is_inside
from sglang_lp.text.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from sglang_lp.request import Request

_COUNTING = ThinkingState.INSIDE, ThinkingState.INSIDE_CALL


class BudgetForm(HeldForm):
    """Rows of thinking budgets.

    A block that closes takes a few steps, in which its row is asked by itself.
    """

    def fits(self, params: Any, vocab_size: int) -> bool:
        return self.most(params) < vocab_size and params.finder is not None

    def most(self, params: Any) -> int:
        return len(params.eos_token_ids) + len(params.end or ()) + len(params.start or ())

    def held(self, request: Request) -> Held | None:
        progress = request.state
        if not progress.is_settled or progress.of_end or progress.finder.strict or progress.looped:
            return None
        if progress.state.is_open:
            return _inside(request) if progress.state in _COUNTING else None
        return _outside(request)


def _outside(request: Request) -> Held:
    """Return the edits while no block opens."""
    params, progress, position = request.params, request.state, request.position
    finder, until, banned = progress.finder, position + LONGEST_SLEEP, list[int]()
    if progress.owed:
        until = min(until, position + progress.owed)
        banned += finder.eos
    if len(finder.start) == 1:
        latest = close_by(params)
        if position >= latest:
            banned += finder.start
        else:
            until = min(until, latest)
    return Held(until, finder.telling, [*dict.fromkeys(banned)])


def _inside(request: Request) -> Held | None:
    """Return the edits while the block stays open, counted token by token."""
    params, progress, position = request.params, request.state, request.position
    finder, inside = progress.finder, progress.inside
    until = position + min(LONGEST_SLEEP, tokens_left(params, progress) - MOST_LACKING)
    if until < position + FEWEST_STEPS:
        return None
    if params.watched:
        until = min(until, position + LONGEST_SLEEP - progress.generated % LONGEST_SLEEP)
    fewest, soft = params.min_thinking_tokens, params.soft_thinking_budget
    if soft is not None and inside >= max(soft, fewest):
        return _closing_well(request, until)
    changes = [at for at in (fewest, soft) if at is not None and at > inside]
    until = min([until, *(position + at - inside for at in changes)])
    question: HeldQuestion | None = None
    banned, telling = finder.others, finder.telling
    if inside < fewest:
        banned = finder.closing_signs[0] if len(finder.end) == 1 else finder.others
        wait = params.wait_token_id
        if wait is not None and len(banned) and progress.waits < params.max_waits:
            question = HeldQuestion(banned, 1, wait)
            telling = _with(telling, frozenset((wait,)))
    elif len(finder.others):
        question = HeldQuestion(finder.others, 1, finder.end[0])
    return Held(until, telling, banned, question)


def _closing_well(request: Request, until: int) -> Held | None:
    """Return the edits while the block waits for a good moment to close."""
    params, progress, finder = request.params, request.state, request.state.finder
    new_line, telling = params.new_line_token_id, finder.telling
    if progress.newest == new_line:
        return None
    if new_line is not None:
        telling = _with(telling, frozenset((new_line,)))
    if request.tokenizer is not None:
        with suppress(RequestError):  # no bytes are known: no token ends inside a character
            vocabulary = vocabulary_of(request.tokenizer)
            if is_inside(vocabulary, request.output_ids):
                return None
            telling = _with(telling, entering(vocabulary))
    question = HeldQuestion(finder.closing_signs[0], params.soft_top_n, finder.next_token[0])
    return Held(until, telling, finder.others, question)


@lru_cache(maxsize=64)
def _with(telling: frozenset[int], token_ids: frozenset[int]) -> frozenset[int]:
    """Return a set with more tokens, once for all rows."""
    return telling.union(token_ids)
