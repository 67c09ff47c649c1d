"""The processors of one request while they are decided on: classes with their parsed parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from sglang_lp.builtins import ChainLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.errors import Unsupported
from sglang_lp.params import replaced
from sglang_lp.processor import LogitProcessor
from sglang_lp.rules.budget import BUDGET, TOTAL

__all__ = [
    "Link",
    "begin_inside",
    "can_join",
    "check_joins",
    "parts",
    "thinks",
    "with_budget",
    "with_total",
]


class Link(NamedTuple):
    """A processor and its parameters.

    Attributes:
        processor: The class.
        params: What its ``parse_params`` returned; for a class without a schema, ``custom_params``.
    """

    processor: type[Any]
    params: Any

    @property
    def has_schema(self) -> bool:
        """Whether the class is this toolkit's kind, and the parameters are typed."""
        return issubclass(self.processor, LogitProcessor)


def thinks(link: Link) -> bool:
    """Tell whether this is a thinking budget."""
    return issubclass(link.processor, ThinkingBudgetLogitProcessor)


def parts(link: Link) -> list[Link]:
    """Return the links of a chain, or the link itself."""
    if issubclass(link.processor, ChainLogitProcessor):
        return [Link(*one) for one in link.params.links]
    return [link]


def can_join(link: Link) -> bool:
    """Tell whether others can run beside it."""
    return link.has_schema and not link.processor.dense


def check_joins(links: Sequence[Link]) -> None:
    """Refuse processors that cannot run beside others.

    Raises:
        Unsupported: There are several links, and one computes on whole rows.
    """
    for link in links:
        if len(links) > 1 and not can_join(link):
            raise Unsupported(
                "custom_logit_processor: expected one that runs beside what this server adds to "
                f"every request, got {link.processor.__name__}, which computes on whole rows; use "
                "a processor that overrides edit()"
            )


def with_budget(link: Link, budget: int) -> Link:
    """Give a thinking budget its number, and hold the smaller ones to it."""
    params = link.params
    soft = params.soft_thinking_budget
    soft = None if soft is None else min(soft, budget)
    least = min(params.min_thinking_tokens, budget if soft is None else soft)
    changes = {
        BUDGET: budget,
        "soft_thinking_budget": soft,
        "min_thinking_tokens": least,
        "wait_token_id": params.wait_token_id if least else None,
    }
    return link._replace(params=replaced(link.params, link.processor.__name__, **changes))


def with_total(link: Link, total: int) -> Link:
    """Give a thinking budget the number of tokens that all blocks may have together."""
    changes = {TOTAL: total}
    return link._replace(params=replaced(link.params, link.processor.__name__, **changes))


def begin_inside(link: Link) -> Link:
    """Have a thinking budget count from the first token, as the served reasoning parser does."""
    params = link.params
    if thinks(link):
        return link._replace(params=link.processor.begin_inside(params))
    if not issubclass(link.processor, ChainLogitProcessor):
        return link
    links = tuple(begin_inside(Link(*one)) for one in params.links)
    return link._replace(params=msgspec.structs.replace(params, links=links))
