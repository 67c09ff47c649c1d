"""The visits of a step: the tokens that rows got, and the drafted ones that they may get."""

from __future__ import annotations

from typing import Any

import numpy as np

from sglang_lp.forms.bits import has_bit
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import DEPTH, POSITION, ROW, SAVE, TOKEN

__all__ = ["CHILD", "DRAFTED", "HOW", "NEXT", "find_watched", "walk"]

#: Of each node of a draft: its token, its first child and its next sibling (-1 for none), and how
#: the row of the logits after it was edited, as in ``Out.edited``.
DRAFTED, CHILD, NEXT, HOW = range(4)


@compiled(
    "int64(int64[::1], int64[::1], int64[:], int64[:], int64[::1], int64[:,:,::1], int64,"
    " int64[:,::1], int64[::1])"
)
def walk(  # noqa: PLR0913, PLR0917 - one compiled call
    new: Any,
    since: Any,
    positions: Any,
    limits: Any,
    index: Any,
    trees: Any,
    width: Any,
    visits: Any,
    first: Any,
) -> Any:
    """Write the visits of all rows, and return the most drafted tokens of a path.

    Args:
        new: The tokens that rows got, row after row; each row got at least one.
        since: Where the tokens of each row begin, and their number.
        positions: For each row the number of generated tokens before its new tokens.
        limits: For each row the number of generated tokens with which it ends.
        index: For each row its index in the batch.
        trees: For each row the nodes of its draft, shape ``(rows, width, 4)``: the columns above.
            Node 0 is the newest token of the row.
        width: Nodes of each draft.
        visits: Gets the visits, as in :class:`~sglang_lp.forms.form.Visits`; long enough for the
            new tokens and all nodes.
        first: Gets the first visit of each row, and their number.
    """
    path = np.zeros(width + 1, np.int64)
    end = deepest = np.int64(0)
    for row in range(len(index)):
        first[row] = end
        position = positions[row]
        for which in range(since[row], since[row + 1]):
            position += 1
            visits[end, TOKEN], visits[end, POSITION], visits[end, ROW] = new[which], position, -1
            visits[end, DEPTH] = visits[end, SAVE] = 0
            end += 1
        visits[end - 1, ROW] = index[row] * width
        root, depth, seen = end - 1, np.int64(1), np.int64(1)
        node = trees[row, 0, CHILD]
        while depth:
            if not 0 < node < width or position + depth >= limits[row] or seen == width:
                depth -= 1  # nothing more follows the token above
                node = trees[row, path[depth], NEXT] if depth else np.int64(-1)
                continue
            visits[root, SAVE] = 1
            child = trees[row, node, CHILD]
            visits[end, TOKEN], visits[end, POSITION] = trees[row, node, DRAFTED], position + depth
            visits[end, ROW], visits[end, DEPTH] = index[row] * width + node, depth
            several = 0 < child < width and trees[row, child, NEXT] > 0
            visits[end, SAVE] = several and position + depth + 1 < limits[row]
            end, seen, deepest = end + 1, seen + 1, max(deepest, depth)
            path[depth] = node
            depth += 1
            node = child
    first[len(index)] = end
    return deepest


@compiled("void(int32[::1], int64[:,::1], int64[:,::1], int64[::1], boolean[::1])")
def find_watched(bits: Any, watching: Any, visits: Any, first: Any, found: Any) -> None:
    """Mark the rows that got a token that they watch for, or that may get one.

    Args:
        bits: Sets of tokens as bits, as :func:`~sglang_lp.forms.bits.bits_of` makes them.
        watching: For each row that watches: its place, and offset and size of its set in ``bits``.
        visits: The visits that :func:`walk` wrote.
        first: The first visit of each row, and their number.
        found: For each row a bool, set to true for the marked rows and otherwise not changed.
    """
    for which in range(len(watching)):
        place, at, size = watching[which, 0], watching[which, 1], watching[which, 2]
        for visit in range(first[place], first[place + 1]):
            if has_bit(bits, at, size, visits[visit, TOKEN]):
                found[place] = True
