"""The processors of one request while the rules are applied: links, parsed and fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.links import Link, fit, parse_links
from sglang_lp.served_model import ServedModel

if TYPE_CHECKING:
    from sglang_lp.processor import LogitProcessor

#: Stands for a model that is not known yet: parameters are checked against their schema only.
UNKNOWN = ServedModel()


def parse_link(processor: type[LogitProcessor], given: Any, served: ServedModel) -> Link:
    """Check parameters against the schema of a class that is no chain.

    Raises:
        RequestError: They do not fit it.
    """
    (link,) = parse_links(processor, given, served.vocab_size)
    return link


def fit_link(link: Link, served: ServedModel) -> Link:
    """Check parameters against the served model, and fill in values that depend on it.

    Raises:
        RequestError: They do not fit the model.
    """
    return link if served is UNKNOWN else fit(link, served)
