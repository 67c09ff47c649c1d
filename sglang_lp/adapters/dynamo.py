"""Dynamo's ``BaseLogitsProcessor``: ``(input_ids, logits)``, one request, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.adapters.rowwise import ConstructedProcessor, Run

if TYPE_CHECKING:
    import torch

__all__ = ["DynamoProcessor"]


class _Run(Run):
    """One processor at work on one request."""

    _tokens: list[int] | None = None

    def call(self, made: Any, position: int, row: torch.Tensor) -> None:
        made(self._seen(position, len(row)), row)  # what it returns is ignored, as Dynamo does

    def part_from(self, before: Run) -> None:
        super().part_from(before)
        self._tokens = self._tokens and [*self._tokens]

    def _seen(self, position: int, vocab_size: int) -> list[int]:
        """Return all tokens before a position: one list that grows."""
        prompt = self.prompt(vocab_size)
        if self._tokens is None:
            self._tokens = [*prompt]
        self._tokens += self.output_ids[len(self._tokens) - len(prompt) : position]
        return self._tokens


class DynamoProcessor(ConstructedProcessor):
    """Runs a processor of Dynamo."""

    interface = "dynamo"
    calling = "processor(input_ids, logits), one request, in place"
    library = ("dynamo", frozenset({"BaseLogitsProcessor"}))
    run = _Run
