"""A batch as a server runs it: its list of requests is one object until a request leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import rows_of

if TYPE_CHECKING:
    import torch

__all__ = ["ServedBatch"]


class ServedBatch(Batch):
    """A batch that sleeps when it may, as on a server.

    Attributes:
        looked: Number of steps that did not sleep.
    """

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0
        self._list: list[Any] = []

    def run(
        self, logits: torch.Tensor, params: Sequence[Any], *, width: int = 1, **how: Any
    ) -> None:
        """Run a step as the sampler does, or sleep through it.

        Args:
            logits: As for ``step``.
            params: ``custom_params`` of each request. SGLang appends joining requests to the list,
                and makes a new list when a request leaves.
            width: As for ``step``.
            how: As for ``step``.
        """
        if len(params) < len(self._list) or any(
            one is not other for one, other in zip(self._list, params, strict=False)
        ):
            self._list = []
        self._list.extend(params[len(self._list) :])
        if not self.step_asleep(
            logits, self._list, width, has_grammar=bool(how.get("grammar_rows"))
        ):
            self.looked += 1
            self.step(logits, rows_of(self._list), self._list, width=width, **how)
