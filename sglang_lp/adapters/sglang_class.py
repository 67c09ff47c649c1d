"""SGLang's own contract: ``processor(logits, custom_param_list)``, rows and their parameters."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp import builtins
from sglang_lp.adapters.adapted import AdaptedProcessor
from sglang_lp.adapters.arguments import Arguments
from sglang_lp.links import prepare
from sglang_lp.params import Parameters, is_private
from sglang_lp.params.flat_json import read_flat
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from sglang_lp.served_model import ServedModel

_STOCK = "sglang.srt.sampling.custom_logit_processor"


class SglangProcessor(AdaptedProcessor):
    """Runs an allowed class that follows only SGLang's contract.

    It gets its rows in a copy, as from SGLang itself; what it returns is checked before it goes
    back into the batch.
    """

    #: The built-in that knows its parameters, if the class is SGLang's own. SGLang's code checks
    #: nothing: a token id outside the vocabulary raises there on a CPU, and ends a server on a GPU.
    _same: ClassVar[type[LogitProcessor] | None]

    def __init__(self) -> None:
        self._made = self.foreign()

    @classmethod
    def parse_params(cls, custom_params: Any, vocab_size: int | None = None) -> Parameters:
        """Check that ``custom_params`` can travel; without a schema, that is all."""
        given = read_flat(custom_params).items()
        if cls._same is not None:
            cls._same.parse_params(custom_params, vocab_size)
        return Arguments(values={key: value for key, value in given if not is_private(key)})

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Parameters:
        """Check the parameters of SGLang's own classes as the built-in does."""
        if cls._same is not None:
            prepare(cls._same(), params.values, served)
        return params  # type: ignore[no-any-return]

    @classmethod
    def defaults(cls) -> Mapping[str, Any]:
        """Return the defaults of SGLang's own classes, as the built-in has them."""
        if cls._same is None:
            return {}
        fields = msgspec.structs.fields(cls._same.Params)
        return {one.name: one.default for one in fields if one.default is not msgspec.NODEFAULT}

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Any] | None = None
    ) -> torch.Tensor:
        """Call the processor, on rows of shape ``(rows, vocab)``."""
        result: torch.Tensor = self._made(logits, custom_param_list)
        return result


@cache  # the rows of a class share a call, so it always has the same processor
def as_processor(found: type) -> type[LogitProcessor]:
    """Return the processor that runs an allowed class: the class itself, if it is a processor."""
    if issubclass(found, LogitProcessor):
        return found
    stock = found.__module__ == _STOCK and found.__name__ in builtins.__all__
    namespace = {
        "__module__": found.__module__,
        "__doc__": found.__doc__,
        "foreign": found,
        "title": found.__name__,
        "_same": getattr(builtins, found.__name__) if stock else None,
    }
    return type(found.__name__, (SglangProcessor,), namespace)
