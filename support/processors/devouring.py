"""Processors of other engines that take their arguments apart, as their own engines let them.

Each class forces the tokens of a list in order. It removes them from the list, or the list from the
dict, that it was handed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from transformers import LogitsProcessor as TransformersBase
from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found]
    AdapterLogitsProcessor,
    LogitsProcessor,
)
from vllm.v1.sample.logits_processor.builtin import (  # type: ignore[import-not-found]
    process_dict_updates,
)

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams  # type: ignore[import-not-found]
    from vllm.config import VllmConfig  # type: ignore[import-not-found]
    from vllm.v1.sample.logits_processor import BatchUpdate

__all__ = ["Entry", "Given", "Popped", "Taken"]


def _only(row: torch.Tensor, token_id: int) -> None:
    """Leave one token."""
    row.fill_(-math.inf)
    row[token_id] = 0.0


def _taken(params: SamplingParams) -> list[int]:
    """Take the list out of ``extra_args``; anything else there forces nothing."""
    token_ids = (params.extra_args or {}).pop("token_ids", [])
    return token_ids if isinstance(token_ids, list) else []


class Popped(TransformersBase):
    """Transformers: pop from the list of a request."""

    def __init__(self, token_ids: list[int]) -> None:
        self.left = token_ids

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Force the next token."""
        if self.left:
            _only(scores[0], self.left.pop(0))
        return scores


class Given(Popped):
    """Transformers: the same with the list that an operator gives."""


class Taken(AdapterLogitsProcessor):  # type: ignore[misc]
    """V1, request-level: take the entry out of ``extra_args``."""

    def is_argmax_invariant(self) -> bool:
        """Say that it forces."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """Return a function that forces the tokens."""
        left = _taken(params)

        def force(_output_ids: list[int], row: torch.Tensor) -> torch.Tensor:
            if left:
                _only(row, left.pop(0))
            return row

        return force


class Entry(LogitsProcessor):  # type: ignore[misc]
    """V1: take the entry out of ``extra_args`` once a request is added."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001
        self.rows: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """Say that it forces."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Record the requests that join and leave."""
        process_dict_updates(
            self.rows,
            batch_update,
            lambda params, _, output_ids: (_taken(params), output_ids),
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Force the next token of each row."""
        for row, (token_ids, output_ids) in self.rows.items():
            if len(output_ids) < len(token_ids):
                _only(logits[row], token_ids[len(output_ids)])
        return logits
