"""The form of a limit on tool calls, until the last call may begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.edits import NEVER
from sglang_lp.forms.held import Held, HeldForm

if TYPE_CHECKING:
    from sglang_lp.request import Request


class ToolCallLimitForm(HeldForm):
    """Rows of limits on tool calls, which edit nothing before the last call."""

    def fits(self, params: Any, vocab_size: int) -> bool:  # noqa: ARG002 - nothing is edited
        return True

    def most(self, params: Any) -> int:  # noqa: ARG002 - as above
        return 0

    def held(self, request: Request) -> Held | None:
        calls = request.state
        if not all(one.is_settled and one.begun < request.params.max_tool_calls for one in calls):
            return None
        return Held(NEVER, frozenset().union(*(one.telling for one in calls)))
