"""The model's own logprobs, on their way from the device to the finish reason.

They are sent with a step's result, in SGLang's field for a plugin's output: SGLang copies them to
the host with the result, and hands them over when it commits the tokens. By then the report of a
request that ends is written, so the logprobs are a separate entry of the finish reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp.faults import from_signal
from sglang_lp.params import RAW
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.scheduler.reasons import add

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.raw import RawLogprobs
    from sglang_lp.server.scheduler.sampling import Steps

logger = logging.getLogger(__name__)


def tell(reason: Any, raw: RawLogprobs) -> None:
    """Put the logprobs known so far into a request's finish reason, in place of earlier ones.

    Args:
        reason: SGLang's finish reason.
        raw: The raw logprobs of the request.
    """
    pairs = [*zip(raw.positions, raw.logprobs, strict=True)]
    add(reason, {RAW: orjson.dumps(pairs).decode()})


class RawSteps:
    """Sends the model's own logprobs of a scheduler's steps. Its public methods are hooks.

    Args:
        steps: Runs the processors.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def after_sample(
        self,
        token_ids: torch.Tensor,
        _runner: Any,
        logits_output: Any,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Send the logprobs of an ordinary step, once it has sampled."""
        self._send(logits_output, token_ids)

    def after_verify(
        self,
        _result: None,
        batch: Any,  # noqa: ARG002 - SGLang's signature
        logits_output: Any,
        predict: torch.Tensor,
        *,
        accept_index: torch.Tensor | None = None,
        **_kwargs: Any,
    ) -> None:
        """Send the logprobs of a verify step, once SGLang's are known."""
        places = None if accept_index is None else accept_index.long().flatten()
        self._send(logits_output, predict, places)

    def _send(
        self, logits_output: Any, token_ids: torch.Tensor, places: torch.Tensor | None = None
    ) -> None:
        """Add the raw logprobs of a step's tokens to its result."""
        rows, self._steps.raw = self._steps.raw, None
        if rows is None:
            return
        reqs = [req for req, _ in rows.requests.values()]
        try:
            own = rows.logprobs(logits_output.next_token_logprobs, token_ids, places)
            from sglang.srt.managers.auxiliary_output import append_auxiliary_output

            asked = {index: raw for index, (_, raw) in rows.requests.items()}
            sent = _OnDevice(own, asked)
            before = logits_output.auxiliary_device_output
            logits_output.auxiliary_device_output = append_auxiliary_output(before, sent)
        except BaseException as error:
            if from_signal(error):
                raise
            logger.exception("sglang-lp: raw logprobs of a step are missing; its requests end")
            for req in reqs:
                end_request(req)


class _OnDevice:
    """The raw logprobs of one step on the device; SGLang copies them with the result."""

    def __init__(self, logprobs: torch.Tensor, asked: Mapping[int, RawLogprobs]) -> None:
        self._logprobs = logprobs
        self._asked = asked

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> _OnHost:
        return _OnHost(copy_tensor(self._logprobs), self._asked)


class _OnHost:
    """The raw logprobs of one step on the host, when SGLang processes the result."""

    def __init__(self, logprobs: torch.Tensor, asked: Mapping[int, RawLogprobs]) -> None:
        self._logprobs = logprobs
        self._asked = asked

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Record the logprobs of committed tokens."""
        logprobs = self._logprobs.view(len(commits), -1)
        for index, raw in self._asked.items():
            commit, req = commits[index], batch.reqs[index]
            if commit is None:
                continue
            try:
                raw.add(commit.output_index, logprobs[index, : len(commit.token_ids)].tolist())
                if req.finished():
                    tell(req.finished_reason, raw)
            except BaseException as error:
                if from_signal(error):
                    raise
                logger.exception("sglang-lp: raw logprobs cannot be told; their request ends")
                end_request(req, kept=len(req.output_ids) if req.finished() else None)
