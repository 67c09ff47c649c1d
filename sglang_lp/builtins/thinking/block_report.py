"""How long the thinking blocks of an answer are, and what ended each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins.thinking.finder import Block, Ended

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.budget import ThinkingBudgetLogitProcessor

__all__ = ["ends_with_loop", "report_blocks"]

#: Bytes of a token, and how many tokens are looked for: few others are the same.
_WIDTH, _PROBE = 8, 8


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
    return block.carried + block.tokens >= params.limit or spent + generated >= params.total


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
    inside = block.carried + len(output_ids) - block.start
    soft = params.soft_thinking_budget
    own = output_ids[max(0, block.start) :]
    if inside >= params.limit or spent + len(own) >= params.total:
        return "budget"
    if params.max_pattern_size is not None and ends_with_loop(params, own):
        return "loop"
    return "soft" if soft is not None and inside >= soft else "early_end"


def ends_with_loop(params: ThinkingBudgetLogitProcessor.Params, token_ids: Sequence[int]) -> bool:
    """Tell whether tokens end with a pattern as often as makes it a loop."""
    count, least = params.min_count, params.min_pattern_size
    largest = min(params.max_pattern_size or 0, len(token_ids) // count)
    if largest < least:
        return False
    text = array("q", token_ids[-largest * count :]).tobytes()
    short = range(least, min(_PROBE, largest + 1))
    if any(_is_repeated(text, size * _WIDTH, count) for size in short):
        return True
    # A longer pattern ends with these bytes, and so does the one before it. To search for them
    # takes a tenth of the time of comparing each size.
    probe = text[-_PROBE * _WIDTH :]
    end = len(text) - max(least, _PROBE) * _WIDTH
    first = max(0, len(text) - (largest + _PROBE) * _WIDTH)
    while (at := text.rfind(probe, first, end)) >= 0:
        size = len(text) - len(probe) - at
        if size % _WIDTH == 0 and _is_repeated(text, size, count):
            return True
        end = at + len(probe) - 1
    return False


def _is_repeated(text: bytes, size: int, count: int) -> bool:
    """Tell whether a text ends with its last bytes so many times in a row."""
    if text[-size:] != text[-2 * size : -size]:  # which most are not: the rest takes longer
        return False
    return text[-size * (count - 1) :] == text[-size * count : len(text) - size]


def _holds_position(spans: Sequence[Sequence[int]], position: int) -> bool:
    return any(start <= position < stop for start, stop in spans)
