"""Running the processors inside SGLang's sampler, and delaying it where a history is needed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.rows import Row, rows_of
from sglang_lp.errors import ProcessorFault
from sglang_lp.request import History

if TYPE_CHECKING:
    import torch

__all__ = ["make_apply", "make_delay"]

logger = logging.getLogger(__name__)


def make_apply() -> Any:
    """Return the replacement for SGLang's ``apply_custom_logit_processor``."""
    batch = Batch()

    def apply_custom_logit_processor(
        logits: torch.Tensor, sampling_batch_info: Any, num_tokens_in_batch: int = 1
    ) -> None:
        """Edit ``logits``, shape ``(rows * num_tokens_in_batch, vocab)``, in place.

        Never raises: this is the scheduler's thread, and it serves everybody.
        """
        rows: list[Row | None] = []
        try:
            custom_params: Sequence[Any] = sampling_batch_info.custom_params
            rows = rows_of(custom_params)
            repeated = num_tokens_in_batch > 1
            if repeated:
                custom_params = [p for p in custom_params for _ in range(num_tokens_in_batch)]
                rows = [row for row in rows for _ in range(num_tokens_in_batch)]
            masked = [
                i * num_tokens_in_batch + draft
                for i, grammar in enumerate(sampling_batch_info.grammars or ())
                if grammar is not None
                for draft in range(num_tokens_in_batch)
            ]
            batch.step(logits, rows, custom_params, masked, repeated=repeated)
        except Exception:
            logger.exception("sglang-lp: a step failed; its requests end, the server goes on")
            _end_all(rows)

    return apply_custom_logit_processor


def _end_all(rows: Sequence[Row | None]) -> None:
    for row in rows:
        if row is not None:
            try:
                row.end(ProcessorFault("internal error of sglang-lp in this step"))
            except Exception:
                logger.exception("sglang-lp: a request could not be ended")


def make_delay() -> Any:
    """Return the hook around ``TpModelWorker.forward_batch_generation``.

    It delays the sampling of exactly the batches that hold a processor that needs the tokens:
    then the previous step's result is in the history first.
    """
    from sglang.srt.environ import envs

    def forward_batch_generation(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
        batch = args[0] if args else next(iter(kwargs.values()), None)
        info = getattr(batch, "sampling_info", None)
        if info is None or not info.has_custom_logit_processor:
            return original(worker, *args, **kwargs)
        rows = rows_of(info.custom_params)
        if not any(row is not None and row.needs is History.TOKENS for row in rows):
            return original(worker, *args, **kwargs)
        with envs.SGLANG_ENABLE_DELAY_SAMPLE.override(True):  # noqa: FBT003 - SGLang's signature
            return original(worker, *args, **kwargs)

    return forward_batch_generation
