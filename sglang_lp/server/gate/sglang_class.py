"""Processors that were not written for this toolkit: SGLang's contract, run with its safety."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp import builtins
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["ForeignProcessor", "same_in_builtins"]

_STOCK = "sglang.srt.sampling.custom_logit_processor"


def same_in_builtins(kind: type) -> type[LogitProcessor] | None:
    """Return the built-in that knows the parameters of a class, if SGLang has it too.

    SGLang's own code checks nothing. A token id outside the vocabulary raises there on a CPU; on
    a GPU it ends the server.
    """
    if kind.__module__ != _STOCK or kind.__name__ not in builtins.__all__:
        return None
    found: type[LogitProcessor] = getattr(builtins, kind.__name__)
    return found


class ForeignProcessor(LogitProcessor):
    """Runs an allowed class that follows SGLang's contract alone.

    It gets its rows in a copy, as from SGLang itself; what it returns is checked before it goes
    back into the batch.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    @property
    def name(self) -> str:
        """Class name of the processor that it runs."""
        return type(self._processor).__name__

    @property
    def kind(self) -> type:
        """The class that it runs: two foreign classes never share a call."""
        return type(self._processor)

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Any] | None = None
    ) -> torch.Tensor:
        """Call the processor, on rows of shape ``(rows, vocab)``."""
        result: torch.Tensor = self._processor(logits, custom_param_list)
        return result
