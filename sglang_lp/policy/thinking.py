"""Which thinking budget a request gets: who asked first, and what the operator allows at most."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BUDGET", "TOTAL", "Wishes", "decide_budget"]

#: The parameter.
BUDGET = "thinking_budget"
#: The parameter for all blocks of an answer together.
TOTAL = "total_thinking_tokens"


class Wishes(NamedTuple):
    """Thinking budgets that are proposed for one request; negative is no limit, ``None`` nothing.

    Attributes:
        own: The request's own parameter.
        field: A field of the request that is a budget, such as Anthropic's ``budget_tokens``.
        effort: What the operator gives the effort that the request asks for.
        default: What the operator gives requests that ask for nothing.
    """

    own: int | None = None
    field: int | None = None
    effort: int | None = None
    default: int | None = None

    @property
    def asked(self) -> int | None:
        """What the request itself asks for."""
        return self.field if self.own is None else self.own


def decide_budget(
    wishes: Wishes, most: int | None, limit: int | None, answer_room: int
) -> int | None:
    """Return the budget of a request: the first wish, and the ceiling last.

    Args:
        wishes: In the order in which they count.
        most: The ceiling on ``thinking_budget``, if there is one.
        limit: Tokens that the request can get, if known.
        answer_room: How many of these a budget leaves for the answer.

    Returns:
        Tokens, or ``None`` for no limit.
    """
    budget = next((wish for wish in wishes if wish is not None), None)
    if budget is not None and budget < 0:
        budget = None
    if most is not None:
        budget = most if budget is None else min(budget, most)
    if budget is not None and limit is not None and answer_room:
        budget = max(0, min(budget, limit - answer_room))
    return budget
