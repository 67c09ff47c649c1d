"""Dynamo's two processors: a ``BaseLogitsProcessor``, and the one that travels as JSON.

A ``BaseLogitsProcessor`` is called with ``(input_ids, logits)`` of one request and changes the
logits in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sglang_lp.adapters.rowwise import ConstructedProcessor, Run
from sglang_lp.builtins import ForcedSequenceLogitProcessor
from sglang_lp.params import FewTokenIds, NonEmptyTokenIds, Parameters

if TYPE_CHECKING:
    import torch


class _DynamoRun(Run):
    """One processor at work on one request."""

    _tokens: list[int] | None = None

    def call(self, made: Any, position: int, row: torch.Tensor) -> None:
        made(self._seen(position, len(row)), row)  # what it returns is ignored, as Dynamo does

    def branch_from(self, parent: Run) -> None:
        super().branch_from(parent)
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
    run = _DynamoRun


class ForcedTokenSequenceSpec(ForcedSequenceLogitProcessor):
    """Force the tokens of a Dynamo entry, then its end token.

    ``custom_params`` is the entry as Dynamo serializes it. Dynamo's own processor counts its calls;
    this processor reads the position, so it works on every server that this toolkit supports,
    with speculative decoding and with prefill and decode apart.
    """

    __module__ = "sglang_lp.adapters"
    example: ClassVar[Mapping[str, Any]] = {
        "kind": "forced_sequence",
        "token_ids": [5, 6],
        "eos_token_id": 2,
    }

    class Params(Parameters, frozen=True):
        """The fields of an entry.

        Attributes:
            kind: The kind of entry.
            token_ids: The sequence.
            eos_token_ids: ``eos_token_id`` of the entry.
        """

        renamed: ClassVar[Mapping[str, str]] = {"eos_token_id": "eos_token_ids"}

        kind: Literal["forced_sequence"]
        token_ids: NonEmptyTokenIds
        eos_token_ids: FewTokenIds
        text: None = None
