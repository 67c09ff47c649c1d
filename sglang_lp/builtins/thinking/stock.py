"""The thinking budget on a stock server, whose history may lack the newest token.

Two things are known without that token: the token that was forced, and that the block is still
open at the last token of its budget, because the model may neither close it there nor call a tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.params import BudgetParams
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: The message for a request that needs the newest token.
NO_LAG = (
    "this server does not show the newest token of a request in time, and only a plain "
    "thinking_budget with delimiters of one token each works without it: run the server with the "
    "sglang-lp plugin, set SGLANG_ENABLE_DELAY_SAMPLE=1, or start it with "
    "--disable-overlap-schedule"
)


def works_unseen(params: BudgetParams) -> bool:
    """Tell whether a request has only a budget, and delimiters of one token each."""
    return (
        params.soft_thinking_budget is None
        and not (params.min_thinking_tokens or params.closing_token_ids or params.eos_token_ids)
        and params.total_thinking_tokens is None
        and not (params.watched or params.room)
        and params.at_limit == "close"
        and len(params.start or ()) == len(params.end or ()) == 1
    )


def close_unseen(request: Request, edits: Edits, budget: int) -> None:
    """Close the block if its budget is spent, else sleep until it could be.

    Args:
        request: A request of which :func:`works_unseen` is true.
        edits: Takes the edits.
        budget: Tokens that a block may have.
    """
    progress, position = request.state, request.position
    (start,), (end,) = progress.finder.start, progress.finder.end
    ends = end, *(request.params.tool_start_token_ids or ())
    newest = _newest(request)
    left = max(0, budget - progress.carried)
    if not progress.state.is_open or newest == end:
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
    forced = end if newest == first else first
    progress.unseen = position, forced
    edits.force(forced)


def _newest(request: Request) -> int | None:
    """Return the newest generated token; ``None`` if it is unknown, or there is none."""
    if request.exact:
        return request.output_ids[-1] if request.position else None
    unseen: tuple[int, int] | None = request.state.unseen
    return unseen[1] if unseen is not None and unseen[0] == request.position - 1 else None
