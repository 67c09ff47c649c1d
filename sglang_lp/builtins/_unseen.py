"""Closing a thinking block on a stock server, whose history lacks the newest token.

What was forced is known without being seen; and a block cannot be closed by the model itself at
the last token of its budget, so that it is known to be open then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

__all__ = ["close_unseen"]


def close_unseen(request: Request, edits: Edits, budget: int) -> None:
    """Close the block if its budget is spent, else sleep until that could be.

    Args:
        request: Its delimiters have one token each; before the end comes at most a newline.
        edits: Takes the edits.
        budget: Tokens that a block may have.
    """
    thinking, position = request.state, request.position
    (start,), (end,) = thinking.by.start, thinking.by.end
    newest = _newest(request)
    if thinking.opened < 0 or newest == end:
        if budget > 1:
            edits.wake_at(position + budget - 1)
        else:
            # A block would be over budget before its start can be seen. None may open with no
            # budget; with one token, none may end unseen.
            edits.ban((end if budget else start,))
        return
    due = thinking.opened + budget - len(request.prompt_ids)
    if position < due:
        if position == due - 1:
            edits.ban((end, start))
        edits.wake_at(due - 1 if position < due - 1 else due)
        return
    first = thinking.by.closing[0]
    thinking.forced = end if newest == first else first
    thinking.forced_at = position
    edits.force(thinking.forced)


def _newest(request: Request) -> int | None:
    """Return the newest generated token, if it can be known."""
    if request.exact:
        return request.output_ids[-1] if request.position else None
    known: bool = request.state.forced_at == request.position - 1
    return request.state.forced if known else None
