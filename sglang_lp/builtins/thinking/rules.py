"""The rules of a thinking budget at one step of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.edits import LENGTH, NEVER
from sglang_lp.text.characters import MOST_LACKING
from sglang_lp.text.encoding import known_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sglang_lp.builtins.thinking.params import BudgetParams
    from sglang_lp.builtins.thinking.progress import Progress
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.text.characters import Characters

#: Most tokens that may come before a sleeping request reads them, and is searched for loops: it
#: bounds the work of a step in which many rows wake (benchmarks/bounds, thinking-wakes-late).
LONGEST_SLEEP = 512


def close_by(params: BudgetParams) -> int:
    """Return the position in the answer at which an open block is closed at the latest."""
    latest: int = getattr(params, "close_by", NEVER)  # fitted parameters have one
    return latest


def tokens_left(params: BudgetParams, progress: Progress) -> int:
    """Return how many more tokens the open block may have, or a new one; 0 or less: it is over."""
    generated = progress.generated if progress.state.is_open else 0
    left = min(
        params.limit - progress.inside,
        params.total - progress.spent - generated,
        close_by(params) - progress.position,
    )
    # An answer ends with the token that is sampled then.
    return left - (params.at_limit == "stop")


def _ends_answer(params: BudgetParams, progress: Progress) -> bool:
    """Tell whether a block that is over ends the answer."""
    return params.at_limit == "stop" and not progress.looped


def _completing_call(params: BudgetParams, progress: Progress) -> Sequence[int]:
    """Return the tokens that end a block that is over with a tool call, if one is begun.

    Only as the next token: a tool start is no part of the thoughts, and the closing, in whose place
    it comes, has a token or more. So no budget is exceeded and each room stays.
    """
    call = progress.completing_call
    if not len(call) or tokens_left(params, progress) < 0 or _ends_answer(params, progress):
        return ()
    return call


def forced_tokens(params: BudgetParams, progress: Progress) -> Iterator[int]:
    """Yield the tokens that are forced from now on, until the block is closed."""
    if not progress.state.is_open:
        return
    soft = params.soft_thinking_budget
    if tokens_left(params, progress) <= 0 or progress.looped:
        closes = not (_ends_answer(params, progress) or _completing_call(params, progress))
    else:
        closes = bool(progress.begun) and soft is not None and soft <= progress.inside
    if closes:
        yield from rest_of_closing(params, progress)


def rest_of_closing(params: BudgetParams, progress: Progress) -> Iterator[int]:
    """Yield the tokens that close the open block.

    A block that opens after the total of all blocks is spent is closed with the end only.
    """
    finder = progress.finder
    if progress.spent >= params.total:
        yield from finder.end[progress.of_end :]
        return
    closer, state = finder.closer, progress.begun
    while True:
        token_id = finder.next_token[state]
        yield token_id
        state = closer.children[state].get(token_id) or closer.children[0][token_id]
        if closer.complete[state]:
            return


def end_block(request: Request, edits: Edits) -> None:
    """Close a block that is over, or end the answer in it.

    The next token may also complete a begun tool start. An answer in a block without room for
    another token ends with the end of the block.
    """
    params, progress = request.params, request.state
    finder = progress.finder
    if not _ends_answer(params, progress):
        closing = next(rest_of_closing(params, progress))
        if call := known_ids(_completing_call(params, progress), edits.vocab_size):
            edits.allow_only([*call, closing])
        else:
            edits.force(closing)
        return
    of_end = len(finder.end)
    if tokens_left(request.params, progress) < 0:
        of_end = progress.of_end + 1
        edits.force(finder.end[of_end - 1])
    if of_end == len(finder.end):
        edits.finish("thinking budget", LENGTH)


def quiet_tokens(
    params: BudgetParams, left: int, inside: int, characters: Characters | None
) -> int:
    """Return for how many more tokens of a block no rule can apply, after ``inside`` of them."""
    if params.min_thinking_tokens or params.eos_token_ids:
        return 0  # after the minimum as well: a block may close and another open in between
    soft = params.soft_thinking_budget
    due = left - MOST_LACKING if characters else left
    return max(0, due if soft is None else min(soft - inside, due))


def edit_inside(request: Request, edits: Edits, left: int, characters: Characters | None) -> None:
    """Apply the first rule that applies to a step within the budget of a block."""
    params, progress = request.params, request.state
    inside = progress.inside
    if inside < params.min_thinking_tokens:
        free, quiet = _keep_open(request, edits), 0
    else:
        free = _close_well(request, edits, inside, characters)
        quiet = quiet_tokens(params, left, inside, characters)
    if params.watched:
        quiet = min(quiet, LONGEST_SLEEP - progress.generated % LONGEST_SLEEP)
    if characters:
        free.ban(characters.cutting(request.output_ids, left - 1))
    free.wake_at(request.position + min(quiet, LONGEST_SLEEP))


def _keep_open(request: Request, edits: Edits) -> Edits:
    """Ban the end in a block that is too short.

    Returns:
        The edits for the case that no token is forced in place of the end.
    """
    params, progress = request.params, request.state
    finder, of_end = progress.finder, progress.of_end
    early = finder.others
    if of_end == len(finder.end) - 1:
        early = finder.closing_signs[of_end]
    wait = params.wait_token_id
    if wait is not None and len(early) and progress.waits < params.max_waits:
        edits = edits.force_if(request.is_among_top(early, 1), wait)
    edits.ban(early)
    return edits


def _close_well(
    request: Request, edits: Edits, inside: int, characters: Characters | None
) -> Edits:
    """Close the block at a good moment.

    Returns:
        The edits for the case that no token is forced to close the block.
    """
    params, progress = request.params, request.state
    finder = progress.finder
    soft = params.soft_thinking_budget is not None and inside >= params.soft_thinking_budget
    if soft and characters and not progress.begun:
        soft = not characters.is_inside(request.output_ids)
    if soft:
        is_good = (
            progress.begun > 0
            or progress.newest == params.new_line_token_id
            or request.is_among_top(finder.closing_signs[progress.of_end], params.soft_top_n)
        )
        edits = edits.force_if(is_good, finder.next_token[progress.begun])
    elif len(finder.others):
        is_ending = request.is_among_top(finder.others, 1)
        edits = edits.force_if(is_ending, finder.end[progress.of_end])
    edits.ban(finder.others)
    return edits
