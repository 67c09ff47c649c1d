"""Steps of a processor that SGLang calls itself: on a server without the plugin, or in a test.

Called by ``LogitProcessor.__call__``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.errors import RequestError, Unsupported
from sglang_lp.links import Serving, prepare
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.row import Row
    from sglang_lp.processor import LogitProcessor

_NO_HISTORY = (
    'custom_params has no "__req__", so the history of the request cannot be seen; SGLang adds '
    "it, and in a test sglang_lp.testing.FakeRequest does"
)


class StockBatch:
    """The batch of one processor instance."""

    def __init__(self) -> None:
        self._batch = Batch()

    def edit(
        self,
        processor: LogitProcessor,
        logits: torch.Tensor,
        custom_param_list: Sequence[Any],
    ) -> None:
        """Edit the rows of a step in place, as :meth:`LogitProcessor.__call__` promises.

        Args:
            processor: The processor.
            logits: Shape ``(rows, vocab)``.
            custom_param_list: One entry per row.
        """
        vocab_size = logits.shape[1]
        rows = [_row_of(params, processor, vocab_size) for params in custom_param_list]
        # Rows of a draft name their request several times.
        repeated = any(row is not None and row is after for row, after in pairwise(rows))
        self._batch.step(logits, rows, custom_param_list, repeated=repeated)


def _row_of(custom_params: Any, processor: LogitProcessor, vocab_size: int) -> Row | None:
    """Return the row of a request, made at its first step; ``None`` without parameters."""
    if not isinstance(custom_params, Mapping):
        return None
    (row,) = rows_of((custom_params,))
    if row is None:
        source = custom_params.get("__req__")
        served = ServedModel.of(
            getattr(source, "tokenizer", None), vocab_size, getattr(source, "eos_token_ids", None)
        )
        try:
            limit = getattr(getattr(source, "sampling_params", None), "max_new_tokens", None)
            servings = prepare(processor, custom_params, served, limit)
            for one in servings if source is None else ():
                if one.in_row.needs is not History.NONE:
                    raise Unsupported(f"{one.name}: {_NO_HISTORY}")
        except RequestError as error:
            row = attach_row(custom_params, [Serving(processor, None)])
            row.end(error)
        else:
            row = attach_row(custom_params, servings)
    return row
