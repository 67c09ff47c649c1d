"""Requests whose answers have to be complete at their limit, as the scheduler's gate marks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_lp.server.gate.whole_answers import WholeAnswer

#: Attribute of SGLang's request: how its answer is to end.
_ENDING = "sglang_lp_ending"


def ask_for_end(req: Any, ending: WholeAnswer) -> None:
    """Have the answer of a request complete at its limit.

    Args:
        req: SGLang's request, before its grammar is compiled.
        ending: How the answer is to end.
    """
    setattr(req, _ENDING, ending)


def ending_of(req: Any) -> WholeAnswer | None:
    """Return how the answer of a request is to end; ``None`` if it need not be complete."""
    ending: WholeAnswer | None = getattr(req, _ENDING, None)
    return ending


def leave(req: Any, hindrance: str) -> None:
    """Leave the answer of a request to SGLang, and remember why."""
    ending = ending_of(req)
    if ending is not None:
        setattr(req, _ENDING, ending._replace(hindrance=hindrance))
