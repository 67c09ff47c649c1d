"""The processors of one request while they are decided on: classes with their parsed parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sglang_lp.builtins import ChainLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.params import replaced
from sglang_lp.policy.thinking import BUDGET, TOTAL

if TYPE_CHECKING:
    from sglang_lp.processor import LogitProcessor

__all__ = [
    "Link",
    "begin_inside",
    "parts",
    "thinks",
    "with_budget",
    "with_total",
]


class Link(NamedTuple):
    """A processor and its parameters.

    Attributes:
        processor: The class.
        params: What its ``parse_params`` returned.
    """

    processor: type[LogitProcessor]
    params: Any


def thinks(link: Link) -> bool:
    """Tell whether this is a thinking budget."""
    return issubclass(link.processor, ThinkingBudgetLogitProcessor)


def parts(link: Link) -> list[Link]:
    """Return the links of a chain, or the link itself."""
    if issubclass(link.processor, ChainLogitProcessor):
        return [Link(*one) for one in link.params.links]
    return [link]


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
    if issubclass(link.processor, ThinkingBudgetLogitProcessor):
        return link._replace(params=link.processor.begin_inside(params))
    if not issubclass(link.processor, ChainLogitProcessor):
        return link
    links = tuple(begin_inside(Link(*one)) for one in params.links)
    return link._replace(params=msgspec.structs.replace(params, links=links))
