"""Closing a thinking block on a stock server, whose history lacks the newest token.

Two things are known without seeing that token: what was forced, and that the block is still open
at the last token of its budget, because the model may not close it there, nor call a tool.
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
    progress, position = request.state, request.position
    (start,), (end,) = progress.finder.start, progress.finder.end
    ends = end, *(request.params.tool_start_token_ids or ())
    newest = _newest(request)
    left = max(0, budget - progress.carried)
    if progress.opened < 0 or newest == end:
        if left > 1:
            edits.wake_at(position + left - 1)
        else:
            # A block would exceed its budget before its start is seen: with a budget of 0 none may
            # open, with 1 none may end unseen.
            edits.ban(ends if left else (start,))
        return
    due = progress.opened + left - len(request.prompt_ids)
    if position < due:
        if position == due - 1:
            edits.ban(ends)
        edits.wake_at(due - 1 if position < due - 1 else due)
        return
    first = progress.finder.closing[0]
    progress.forced = end if newest == first else first
    progress.forced_at = position
    edits.force(progress.forced)


def _newest(request: Request) -> int | None:
    """Return the newest generated token, if it can be known."""
    if request.exact:
        return request.output_ids[-1] if request.position else None
    known: bool = request.state.forced_at == request.position - 1
    return request.state.forced if known else None
