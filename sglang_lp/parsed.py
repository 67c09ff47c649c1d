"""Parsed and fitted parameters, shared by the copies of a request.

A list takes ten times as long to check as to compare (``benchmarks/bounds``), and the copies share
what is made of it: so parameters with a long list are parsed and fitted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.copies import Latest, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sglang_lp.params import Parameters
    from sglang_lp.served_model import ServedModel

__all__ = ["fit_once", "parse_once"]


class _Known:
    """Parameters of one request.

    Attributes:
        params: The parsed parameters.
        served: The model that they were fitted to last.
        fitted: The parameters after that.
    """

    __slots__ = ("fitted", "params", "served")

    def __init__(self, params: Parameters) -> None:
        self.params = params
        self.served: ServedModel | None = None
        self.fitted = params


#: By class, size of the vocabulary and parameters: enough for two chains of eight links.
_known: Latest[_Known] = Latest(18)


def parse_once(
    cls: type,
    custom_params: Mapping[str, Any],
    vocab_size: int | None,
    parse: Callable[[Any, int | None], Parameters],
) -> Parameters:
    """Return parsed parameters, the same object for equal parameters of one class.

    Args:
        cls: The processor.
        custom_params: Of the request.
        vocab_size: Number of logits in a row of the served model, if known.
        parse: Called with the parameters and the size where they are new.
    """
    own = packed(custom_params)
    if own is None:
        return parse(custom_params, vocab_size)
    key = cls, vocab_size, own
    known = _known.get(key)
    if known is None:
        known = _Known(parse(custom_params, vocab_size))
        _known.keep(key, known)
    return known.params


def fit_once(
    params: Parameters, served: ServedModel, fit: Callable[[Parameters, ServedModel], Parameters]
) -> Parameters:
    """Return fitted parameters, the same object for parameters that were parsed once.

    Args:
        params: What :func:`parse_once` returned, or others.
        served: The model.
        fit: Called with both where this model is new to the parameters.
    """
    known = next((one for one in _known.values() if one.params is params), None)
    if known is None:
        return fit(params, served)
    if known.served is None or not _is_same(known.served, served):
        known.fitted = fit(params, served)
        known.served = served
    return known.fitted


def _is_same(one: ServedModel, other: ServedModel) -> bool:
    # A tokenizer of another library may define equality in any way.
    return one.tokenizer is other.tokenizer and one[1:] == other[1:]
