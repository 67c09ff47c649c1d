"""Texts of a request as token ids, by a local copy of the model's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.builtins.thinking.delimiters import forget_answers
from sglang_lp.client.json_values import to_json_value
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.links import Link, fit, parse_links
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.served_model import ServedModel

__all__ = ["resolve_params"]


def resolve_params(
    processor: type[Any], given: Mapping[str, Any], served: ServedModel
) -> dict[str, Any]:
    """Return ``custom_params`` as a server of this model would resolve them.

    Args:
        processor: The class.
        given: The parameters.
        served: The model.

    Raises:
        InvalidParameter: The parameters do not fit the model.
        RequestError: The class is of another library, whose parameters are unknown here.
    """
    if not issubclass(processor, LogitProcessor):
        raise RequestError(
            "resolve: expected a LogitProcessor, whose parameters say which of them are texts, "
            f"got {processor.__name__}; resolve its texts yourself"
        )
    forget_answers()
    served = served._replace(scores=True)  # by the server that gets the request
    fitted = [fit(link, served) for link in parse_links(processor, given, served.vocab_size)]
    found = {"chain": given["chain"]} if issubclass(processor, ChainLogitProcessor) else {}
    for link in fitted:
        own = {k.removeprefix(link.place): v for k, v in given.items() if k.startswith(link.place)}
        resolved = _resolved(link, own, served)
        found |= {link.place + name: value for name, value in resolved.items()}
    return found


def _resolved(link: Link, given: Mapping[str, Any], served: ServedModel) -> dict[str, Any]:
    """Return the parameters of one processor."""
    processor, fitted, found = link.processor, link.params, {}
    for field in msgspec.structs.fields(processor.Params):
        value = getattr(fitted, field.name)
        if value != field.default:
            found[field.name] = to_json_value(processor.__name__, field.name, value)
    try:
        parsed = processor.parse_params(found, served.vocab_size)
        again = fit(Link(processor, parsed), served).params
    except InvalidParameter:
        again = None
    # A text that may be spelled by any tokens stays text.
    return found if again == fitted else dict(given)
