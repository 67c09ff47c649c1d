"""The processors of one request while the rules are applied: classes with parsed parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.faults import blaming
from sglang_lp.processor import fit
from sglang_lp.served_model import ServedModel

if TYPE_CHECKING:
    from sglang_lp.processor import LogitProcessor

#: Stands for a model that is not known yet: parameters are checked against their schema only.
UNKNOWN = ServedModel()


class Link(NamedTuple):
    """A processor and its parameters.

    Attributes:
        processor: The class.
        params: The result of its ``parse_params``.
    """

    processor: type[LogitProcessor]
    params: Any


def parse_link(processor: type[LogitProcessor], given: Any, served: ServedModel) -> Link:
    """Check parameters against the schema of their class.

    Raises:
        RequestError: They do not fit it.
    """
    with blaming(processor.__name__):
        return Link(processor, processor.parse_params(given, served.vocab_size))


def fit_link(link: Link, served: ServedModel) -> Link:
    """Check parameters against the served model, and fill in values that depend on it.

    Raises:
        RequestError: They do not fit the model.
    """
    if served is UNKNOWN:
        return link
    with blaming(link.processor.__name__):
        return link._replace(params=fit(link.processor, link.params, served))


def parts(link: Link) -> list[Link]:
    """Return the links of a chain, or the link itself."""
    if issubclass(link.processor, ChainLogitProcessor):
        return [Link(*one) for one in link.params.links]
    return [link]


def same_params(one: Sequence[Link], other: Sequence[Link]) -> bool:
    """Tell whether two lists of links have the very same parameters."""
    return len(one) == len(other) and all(
        a.params is b.params for a, b in zip(one, other, strict=True)
    )
