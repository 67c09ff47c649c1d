"""The processors of one request while they are decided on: classes with their parsed parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from sglang_lp.builtins import ChainLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.errors import InvalidParameter, Unsupported
from sglang_lp.processor import LogitProcessor
from sglang_lp.rules.budget import BUDGET
from sglang_lp.trust.decisions import Above, Ceiling

__all__ = ["Link", "can_join", "check_joins", "lower", "parts", "thinks", "with_budget"]


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
                f"{link.processor.__name__}: it computes on whole rows, and so cannot run beside "
                "what this server adds to every request; use a processor that overrides edit()"
            )


def lower(link: Link, ceilings: dict[str, Ceiling]) -> Link:
    """Hold a link to the ceilings on its numbers, but for the thinking budget.

    Raises:
        InvalidParameter: One is above a ceiling that refuses that.
    """
    changes = {}
    for name, ceiling in ceilings.items():
        value = _number(link, name)
        if name == BUDGET and thinks(link):
            continue
        if value is None or value <= ceiling.at_most:
            continue
        if ceiling.above == Above.REFUSE:
            raise InvalidParameter(
                link.processor.__name__,
                name,
                f"expected at most {ceiling.at_most} on this server, got {value}",
            )
        changes[name] = type(value)(ceiling.at_most)
    if not changes:
        return link
    if link.has_schema:
        return link._replace(params=_replaced(link, changes))
    return link._replace(params={**link.params, **changes})


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
    return link._replace(params=_replaced(link, changes))


def _replaced(link: Link, changes: dict[str, Any]) -> Any:
    try:
        return msgspec.structs.replace(link.params, **changes)
    except ValueError as error:  # of a __post_init__
        name, _, problem = str(error).partition(": ")
        raise InvalidParameter(link.processor.__name__, name, problem) from None


def _number(link: Link, name: str) -> Any:
    if link.has_schema:
        value = getattr(link.params, name, None) if name in link.params.__struct_fields__ else None
    else:
        value = (link.params or {}).get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
