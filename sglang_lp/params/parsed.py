"""Parsed and fitted parameters, shared by the copies of a request.

Parameters with a long list are parsed and fitted once: the copies share the tensors made of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.caches import Latest, packed
from sglang_lp.edits.ids import LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang_lp.params import Parameters
    from sglang_lp.processor_base import ProcessorBase
    from sglang_lp.served_model import ServedModel

__all__ = ["fit_once", "forget", "parse_once"]

_LISTS = list, tuple


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
    processor: type[ProcessorBase], custom_params: Any, vocab_size: int | None = None
) -> Parameters:
    """Return the parsed parameters of a request, the same object for its copies.

    Args:
        processor: The class.
        custom_params: The parameters of the request, or ``None``.
        vocab_size: Number of logits in a row of the served model, if known.

    Raises:
        InvalidParameter: They do not fit the class.
    """
    own = packed(custom_params) if _takes_long(custom_params) else None
    if own is None:
        return processor.parse_params(custom_params, vocab_size)
    key = processor, vocab_size, own
    known = _known.get(key)
    if known is None:
        known = _RequestParams(processor.parse_params(custom_params, vocab_size))
        _known.keep(key, known)
    return known.params


def _takes_long(custom_params: Any) -> bool:
    """Tell whether parameters take longer to check, or to fit, than to compare."""
    if not isinstance(custom_params, dict):
        return False
    # No any(), which is slower: attach() has 5 µs (docs/performance.md).
    for value in custom_params.values():
        if isinstance(value, _LISTS) and (
            len(value) >= LONG or (len(value) > 0 and isinstance(value[0], str))
        ):
            return True
    return False


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
