"""The model's own logprobs on their way from the device to the report.

They travel with a step's result, by SGLang's own transport for what a plugin adds to it: copied
with the rest, and read when SGLang commits the tokens. That is after a request's report was
written, so they stand beside it in the finish reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp.faults import from_signal
from sglang_lp.params import RAW
from sglang_lp.server.scheduler.reasons import add, fail, fail_finished

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.raw import RawLogprobs
    from sglang_lp.server.scheduler.sampling import Steps

logger = logging.getLogger(__name__)


def tell(reason: Any, raw: RawLogprobs) -> None:
    """Put the logprobs known so far into a request's finish reason, in place of earlier ones.

    Args:
        reason: SGLang's.
        raw: Of the request.
    """
    pairs = [*zip(raw.positions, raw.logprobs, strict=True)]
    add(reason, {RAW: orjson.dumps(pairs).decode()})


class RawSteps:
    """Sends the model's own logprobs of a scheduler's steps. Its public methods are hooks.

    Args:
        steps: Has run the processors.
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
        """Send those of an ordinary step, once it has sampled."""
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
        """Send those of a verify step, once its logprobs are known."""
        places = None if accept_index is None else accept_index.long().flatten()
        self._send(logits_output, predict, places)

    def _send(
        self, logits_output: Any, token_ids: torch.Tensor, places: torch.Tensor | None = None
    ) -> None:
        """Add what the model says of the tokens of a step to its result."""
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
                fail(req)


class _OnDevice:
    """Those of one step; SGLang copies them together with its result."""

    def __init__(self, logprobs: torch.Tensor, asked: Mapping[int, RawLogprobs]) -> None:
        self._logprobs = logprobs
        self._asked = asked

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> _OnHost:
        return _OnHost(copy_tensor(self._logprobs), self._asked)


class _OnHost:
    """The same once SGLang processes the result."""

    def __init__(self, logprobs: torch.Tensor, asked: Mapping[int, RawLogprobs]) -> None:
        self._logprobs = logprobs
        self._asked = asked

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Take down those of tokens that were committed."""
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
                if req.finished():
                    fail_finished(req, len(req.output_ids))
                else:
                    fail(req)
