"""Plays greedy decodes of several requests in one batch, without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.rows import Row, attach_row, rows_of
from sglang_lp.processor import prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.batch import Batch

#: From all tokens of each request to the logits of the next one, shape ``(requests, vocab)``.
Model = Callable[[Sequence[Sequence[int]]], "torch.Tensor"]


class Played:
    """A request that is being played.

    Attributes:
        source: The request as SGLang would show it.
        custom_params: Its parameters, with the row in them.
    """

    def __init__(  # noqa: PLR0913 - most have a default
        self,
        processor: Any,
        params: Mapping[str, Any],
        prompt: Sequence[int],
        *,
        tokenizer: Any = None,
        sampling: Any = None,
        vocab_size: int | None = None,
    ) -> None:
        self.source = FakeRequest(prompt, served=True, tokenizer=tokenizer)
        self.source.sampling_params = sampling  # type: ignore[attr-defined]
        self.custom_params = self.source.custom_params(params)
        if processor is not None:
            serving, parsed = prepare(
                processor(), self.custom_params, ServedModel(tokenizer, vocab_size)
            )
            host = StockHost(self.source, may_lag=False)
            host.tokenizer = tokenizer
            attach_row(self.custom_params, serving, parsed, host)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.source.origin_input_ids, *self.source.output_ids]

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return [*self.source.output_ids]

    @property
    def error(self) -> str | None:
        """What ended the request, if a fault did."""
        reason = self.source.to_finish
        return None if reason is None else str(reason.message)

    @property
    def row(self) -> Row | None:
        """Its row."""
        return rows_of([self.custom_params])[0]

    def retract(self) -> None:
        """Be retracted after a step whose token SGLang drops."""
        row = self.row
        if row is not None:
            row.rewind()


def step(batch: Batch, model: Model, played: Sequence[Played]) -> list[int]:
    """Run one step; return the likeliest tokens, which belong to nobody yet."""
    logits = model([one.tokens for one in played])
    params = [one.custom_params for one in played]
    batch.step(logits, rows_of(params), params)
    return [int(token_id) for token_id in logits.argmax(-1)]


def decode(
    batch: Batch, model: Model, played: Sequence[Played], steps: int, eos: int = -1
) -> list[list[int]]:
    """Play a greedy decode; a request leaves the batch with its end token or a fault."""
    running = [*played]
    for _ in range(steps):
        if not running:
            break
        for one, token_id in zip(running, step(batch, model, running), strict=True):
            if one.error is None:
                one.source.append(token_id)
        running = [one for one in running if one.error is None and one.output[-1] != eos]
    return [one.output for one in played]
