"""Loops at the end of a thinking block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp.builtins.repetition.novelty import few_are_new

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.params import BudgetParams

#: Bytes of a token, and number of tokens that are searched for at once.
_WIDTH, _PROBE = 8, 8


def ends_with_loop(params: BudgetParams, token_ids: Sequence[int]) -> bool:
    """Tell whether tokens end with a loop: a repeated pattern, or few new n-grams.

    Args:
        params: The parameters that define a loop.
        token_ids: The tokens of a block.
    """
    if _ends_with_pattern(params, token_ids):
        return True
    share = params.min_new_share
    return share is not None and few_are_new(
        token_ids, params.ngram_size, params.window_size, share
    )


def _ends_with_pattern(params: BudgetParams, token_ids: Sequence[int]) -> bool:
    """Tell whether tokens end with a pattern that comes ``min_count`` times in a row."""
    count, least = params.min_count, params.min_pattern_size
    largest = min(params.max_pattern_size or 0, len(token_ids) // count)
    if largest < least:
        return False
    text = array("q", token_ids[-largest * count :]).tobytes()
    short = range(least, min(_PROBE, largest + 1))
    if any(_is_repeated(text, size * _WIDTH, count) for size in short):
        return True
    # A longer pattern ends with the last tokens, and so does the occurrence before it: only sizes
    # at which these tokens are found are compared as a whole.
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
    """Tell whether the last ``size`` bytes of a text come ``count`` times in a row at its end."""
    if text[-size:] != text[-2 * size : -size]:  # nearly always
        return False
    return text[-size * (count - 1) :] == text[-size * count : len(text) - size]
