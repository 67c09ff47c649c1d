"""Parsed and fitted parameters, shared by the copies of a request.

Parameters with a long list are parsed and fitted once: the copies share the tensors made of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.caches import Latest, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sglang_lp.params import Parameters
    from sglang_lp.served_model import ServedModel

__all__ = ["fit_once", "forget", "parse_once"]


class _RequestParams:
    """Parameters of one request.

    Attributes:
        params: Parsed parameters.
        served: The model of the latest fit.
        fitted: Parameters fitted to ``served``, and their phase.
    """

    __slots__ = ("fitted", "params", "served")

    def __init__(self, params: Parameters) -> None:
        self.params = params
        self.served: ServedModel | None = None
        self.fitted: tuple[Parameters, Any] = params, None


#: Keys are class, vocabulary size and packed parameters; 18 is two chains with eight links each.
_MOST = 18
_known: Latest[_RequestParams] = Latest(_MOST)


def forget() -> None:
    """Drop all parameters, and with them what they were fitted to."""
    global _known  # noqa: PLW0603 - replaced, because another thread may read the old one
    _known = Latest(_MOST)


def parse_once(
    cls: type,
    custom_params: Mapping[str, Any],
    vocab_size: int | None,
    parse: Callable[[Any, int | None], Parameters],
) -> Parameters:
    """Return parsed parameters, the same object for equal parameters of one class.

    Args:
        cls: The processor.
        custom_params: The parameters of the request.
        vocab_size: Number of logits in a row of the served model, if known.
        parse: Called with both if the parameters are new.
    """
    own = packed(custom_params)
    if own is None:
        return parse(custom_params, vocab_size)
    key = cls, vocab_size, own
    known = _known.get(key)
    if known is None:
        known = _RequestParams(parse(custom_params, vocab_size))
        _known.keep(key, known)
    return known.params


def fit_once(
    params: Parameters,
    served: ServedModel,
    fit: Callable[[Parameters, ServedModel], tuple[Parameters, Any]],
) -> tuple[Parameters, Any]:
    """Return fitted parameters and their phase, the same for parameters that were parsed once.

    Args:
        params: Parsed parameters.
        served: The served model.
        fit: Called with both if the parameters were not fitted to this model last.
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
