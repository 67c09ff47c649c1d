"""Which processors a beam search takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.builtins import CatalogueLogitProcessor, LoopBreakerLogitProcessor
from sglang_lp.errors import RequestError, Unsupported, shown
from sglang_lp.policy.thinking import is_thinking_budget
from sglang_lp.request import History
from sglang_lp.server.versions import BEAM_SEARCH, has_beam_search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp.links import Serving

#: Parameters with which a built-in that may end the answer does not end it.
_KEEPS_ON = {
    CatalogueLogitProcessor.__name__: '"ends_answer": false',
    LoopBreakerLogitProcessor.__name__: '"action": "ban"',
}


def check_beams(width: object, servings: Sequence[tuple[str, Serving]]) -> None:
    """Refuse a processor that could not edit each beam exactly.

    Args:
        width: The request's ``beam_width``, more than 1.
        servings: The processors of the request, each with its name for the message.

    Raises:
        RequestError: With the reason.
    """
    if not isinstance(width, int):
        raise RequestError(f"beam_width: expected a whole number, got {shown(width)}")
    if not has_beam_search():
        name = ", ".join(name for name, _ in servings)
        raise _refused(width, name, f"only SGLang {BEAM_SEARCH} and newer search beams with it")
    for name, link in servings:
        why = _why_not(link)
        if why is not None:
            keeps_on = _KEEPS_ON.get(link.name) if link.flags.finishes else None
            raise _refused(width, name, why, f"send {keeps_on}, or " if keeps_on else "")


def _refused(width: int, name: str, why: str, remedy: str = "") -> Unsupported:
    return Unsupported(
        f"beam_width: expected 1 with {name}, got {width}: {why}; {remedy}leave out one of them"
    )


def _why_not(link: Serving) -> str | None:
    """Return why one processor cannot follow beams, or ``None`` if it can."""
    processor, kind = link.flags, type(link.processor)
    if is_thinking_budget(kind):
        return "it counts the thinking of one answer"
    if processor.reads_request:
        return "it reads SGLang's request itself, which does not have the tokens of each beam"
    if processor.finishes:
        return "it may end the answer, and cannot end one beam of several"
    if processor.samples:
        return "it is for answers that are sampled, and a beam search samples no token"
    if link.in_row.needs is not History.NONE and not processor.can_fork:
        return "its state cannot be forked, which following a beam takes (can_fork)"
    return None
