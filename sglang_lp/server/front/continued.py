"""Chats that continue an answer (``continue_final_message``): whether it still thinks.

SGLang takes any answer of a thinking model for one that may begin inside its thoughts. Only its
parser looks at the message that the client begins the answer with. So it is read here, where it
still is, and kept in ``custom_params`` under a key that no client can send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.server.gate.reserved_keys import THOUGHT, add_own

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

__all__ = ["make_read_continued"]


def make_read_continued(guard: Guard) -> Any:
    """Return the hook before SGLang turns a chat into its own form."""

    def read_continued(_serving: Any, request: Any, _raw_request: Any = None) -> None:
        form = guard.reasoning
        if form is None or not request.continue_final_message:
            return
        last = request.messages[-1] if request.messages else None
        begun = getattr(last, "content", None)
        if getattr(last, "role", None) != "assistant" or not isinstance(begun, str):
            return
        if any(one.end in begun for one in (form, *form.others)):
            request.custom_params = add_own(request.custom_params, THOUGHT, value=True)

    return read_continued
