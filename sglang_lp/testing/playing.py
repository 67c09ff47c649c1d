"""Greedy decodes without a server: of one request, or of several in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.links import prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing.requests import FakeRequest

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.row import Row
    from sglang_lp.errors import SglangLpError
    from sglang_lp.processor import LogitProcessor

__all__ = ["Batch", "BatchModel", "Model", "Played", "Transcript", "decode", "run", "step"]

#: Function from all tokens so far, prompt included, to the logits of the next token.
Model = Callable[[Sequence[int]], Sequence[float]]

#: Function from all tokens of each request to the next logits, shape ``(requests, vocab)``.
BatchModel = Callable[[Sequence[Sequence[int]]], "torch.Tensor"]


class Transcript(NamedTuple):
    """A finished decode of one request.

    Attributes:
        token_ids: Generated tokens.
        seen: The tokens that had reached ``advance`` before each step.
        logits: The edited row of each step, shape ``(vocab,)``.
    """

    token_ids: list[int]
    seen: list[list[int]]
    logits: list[torch.Tensor]

    def __repr__(self) -> str:
        """Return the tokens; of the rest only its size."""
        width = len(self.logits[0]) if self.logits else 0
        return f"Transcript(token_ids={self.token_ids}, logits={len(self.logits)} rows of {width})"


def run(  # noqa: PLR0913 - a decode has this many parts
    processor: type[LogitProcessor],
    params: Mapping[str, Any],
    prompt_ids: Sequence[int],
    model: Model | Sequence[int],
    *,
    steps: int,
    vocab_size: int = 1000,
    tokenizer: Any = None,
    eos_token_ids: Iterable[int] | None = None,
) -> Transcript:
    """Play a greedy decode of one request.

    Args:
        processor: The class.
        params: The ``custom_params``.
        prompt_ids: Token ids of the prompt.
        model: A function from the tokens so far to the next logits; or a script, the tokens that
            the model generates in order. If the script's token is banned, the smallest allowed id
            is generated; after the script, token 0.
        steps: Number of tokens to generate; the ``max_new_tokens`` of the request.
        vocab_size: Number of logits in a row.
        tokenizer: The model's tokenizer, for a processor with text parameters.
        eos_token_ids: The model's end tokens, for a processor that takes them from the model.

    Returns:
        The generated tokens, and the tokens and logits of each step.

    Raises:
        RequestError: The parameters do not fit.
        ProcessorFault: The processor failed.
    """
    import torch

    if not callable(model):
        model = _scripted(model, len(prompt_ids), vocab_size)
    request = FakeRequest(prompt_ids, tokenizer=tokenizer, eos_token_ids=eos_token_ids)
    request.sampling_params = SimpleNamespace(max_new_tokens=steps)  # type: ignore[attr-defined]
    custom_params = request.custom_params(params)
    played = Transcript([], [], [])
    for _ in range(steps):
        logits = torch.tensor([model([*prompt_ids, *played.token_ids])], dtype=torch.float32)
        row = processor()(logits, [custom_params])[0]
        token_id = int((row == row.max()).nonzero()[0])
        (attached,) = rows_of([custom_params])
        played.seen.append([] if attached is None else [*attached.tokens])
        played.logits.append(row)
        played.token_ids.append(token_id)
        request.append(token_id)
    return played


def _scripted(script: Sequence[int], prompt_length: int, vocab_size: int) -> Model:
    def model(token_ids: Sequence[int]) -> Sequence[float]:
        position = len(token_ids) - prompt_length
        logits = [0.0] * vocab_size
        logits[script[position] if position < len(script) else 0] = 1.0
        return logits

    return model


class _PlayedHost(StockHost):
    """Keeps the error that ends a request: SGLang's finish reason needs SGLang."""

    __slots__ = ()

    def end(self, error: SglangLpError) -> None:
        self.request.to_finish = error


class Played:
    """A request that is being played in a batch.

    Args:
        processor: The class, or ``None``.
        params: The ``custom_params``.
        prompt: Token ids of the prompt.
        tokenizer: The model's tokenizer, for a processor with text parameters.
        sampling: SGLang's ``SamplingParams``, for a processor of another engine that reads them.
        vocab_size: Number of logits in a row, to check token ids by.

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
            served = ServedModel(tokenizer, vocab_size)
            servings = prepare(processor(), self.custom_params, served)
            host = _PlayedHost(self.source, may_lag=False)
            host.tokenizer = tokenizer
            attach_row(self.custom_params, servings, host)

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
        """Message of the error that ended the request, or ``None``."""
        error = self.source.to_finish
        return None if error is None else str(error)

    @property
    def row(self) -> Row | None:
        """The request's row in the engine."""
        return rows_of([self.custom_params])[0]

    def retract(self) -> None:
        """Retract the request after a step; SGLang drops the token of that step."""
        row = self.row
        if row is not None:
            row.rewind()


def step(batch: Batch, model: BatchModel, played: Sequence[Played]) -> list[int]:
    """Run one step; return the likeliest tokens, which are not appended to the requests."""
    logits = model([one.tokens for one in played])
    params = [one.custom_params for one in played]
    batch.step(logits, rows_of(params), params)
    return [int(token_id) for token_id in logits.argmax(-1)]


def decode(
    batch: Batch, model: BatchModel, played: Sequence[Played], steps: int, eos: int = -1
) -> list[list[int]]:
    """Play a greedy decode of several requests.

    Args:
        batch: Runs the processors.
        model: The model of all requests.
        played: The requests; each leaves the batch at its end token or at an error.
        steps: Most tokens to generate.
        eos: The end token; none by default.

    Returns:
        The generated tokens of each request.
    """
    running = [*played]
    for _ in range(steps):
        if not running:
            break
        for one, token_id in zip(running, step(batch, model, running), strict=True):
            if one.error is None:
                one.source.append(token_id)
        running = [one for one in running if one.error is None and one.output[-1] != eos]
    return [one.output for one in played]
