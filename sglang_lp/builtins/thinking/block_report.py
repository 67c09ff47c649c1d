"""How long the thinking blocks of an answer are, and what ended each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins.thinking.finder import Block, Ended

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.budget import ThinkingBudgetLogitProcessor

__all__ = ["ends_with_loop", "report_blocks"]


def report_blocks(
    params: ThinkingBudgetLogitProcessor.Params,
    closing: tuple[int, ...],
    blocks: Sequence[Block],
    output_ids: Sequence[int],
    forced: Sequence[Sequence[int]],
) -> list[dict[str, Any]]:
    """Return for each block its ``tokens``, and what ``ended`` it.

    Args:
        params: Of the budget.
        closing: What it forces to close a block.
        blocks: Those of the answer.
        output_ids: The answer.
        forced: From where to before where tokens were forced.
    """
    spent, reports = 0, []
    for block in blocks:
        ended = None if block.ended is None else "model"
        if block.ended is Ended.TOOL_CALL:
            ended = "tool_call"
        elif block.end is not None and _holds_position(forced, block.end):
            begun = _closing_begun(block.end, closing, output_ids, forced)
            ended = _rule(params, block, spent, output_ids[:begun])
        elif block.end is None and params.at_limit == "stop" and _is_over(params, block, spent):
            ended = "budget"
        reports.append({"tokens": block.tokens, "ended": ended})
        spent += block.tokens + min(0, block.start)
    return reports


def _is_over(params: ThinkingBudgetLogitProcessor.Params, block: Block, spent: int) -> bool:
    """Tell whether a block has all the tokens that it may have."""
    generated = block.tokens + min(0, block.start)
    return block.tokens >= params.limit or spent + generated >= params.total


def _closing_begun(
    end: int, closing: tuple[int, ...], output_ids: Sequence[int], forced: Sequence[Sequence[int]]
) -> int:
    """Return the position where forcing a closing began that ends at ``end``."""
    begun = end
    for back in range(1, len(closing)):
        at = end - back
        if output_ids[at] != closing[-1 - back] or not _holds_position(forced, at):
            break
        begun = at
    return begun


def _rule(
    params: ThinkingBudgetLogitProcessor.Params,
    block: Block,
    spent: int,
    output_ids: Sequence[int],
) -> str:
    """Return the rule that closed a block after these tokens of the output."""
    inside, soft = len(output_ids) - block.start, params.soft_thinking_budget
    own = output_ids[max(0, block.start) :]
    if inside >= params.limit or spent + len(own) >= params.total:
        return "budget"
    if params.max_pattern_size is not None and ends_with_loop(params, own):
        return "loop"
    return "soft" if soft is not None and inside >= soft else "early_end"


def ends_with_loop(params: ThinkingBudgetLogitProcessor.Params, token_ids: Sequence[int]) -> bool:
    """Tell whether tokens end with a pattern as often as makes it a loop."""
    largest = min(params.max_pattern_size or 0, len(token_ids) // params.min_count)
    newest = [*token_ids[-largest - 1 :]]
    newest.reverse()
    size = params.min_pattern_size - 1
    while size < largest:
        try:  # most tokens end no pattern, and this takes a tenth of looking at each size
            size = newest.index(newest[0], size + 1, largest + 1)
        except ValueError:
            return False
        again, stop = size * (params.min_count - 1), len(token_ids) - size
        if token_ids[-again:] == token_ids[stop - again : stop]:
            return True
    return False


def _holds_position(spans: Sequence[Sequence[int]], position: int) -> bool:
    return any(start <= position < stop for start, stop in spans)
