"""Answers as training data: the tokens that the model chose, and its own logprobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp.errors import NotRun, shown
from sglang_lp.params import RAW
from sglang_lp.wire.names import REPORT

__all__ = ["loss_mask", "raw_logprobs"]


def loss_mask(answer: Mapping[str, Any]) -> list[int]:
    """Return 1 for each token that the model chose, and 0 for each forced token.

    Args:
        answer: The answer of ``/generate`` or ``Engine.generate`` for one prompt; with
            ``"return_meta_info": true``, also a choice of a chat or completion, or a response. Of a
            stream, the event with the report.

    Raises:
        NotRun: The answer does not report the forced tokens, or only some of them.
    """
    meta, report = _told("loss_mask", answer)
    try:
        tokens, spans, told = meta["completion_tokens"], report["forced_at"], report["truncated"]
    except KeyError as error:
        raise NotRun(
            "loss_mask: expected completion_tokens, and a report with forced_at and truncated, "
            f"got one without {error}; servers report them since sglang-lp 0.2.0"
        ) from None
    if told is not None:
        raise NotRun(
            f"loss_mask: forced tokens are listed only up to token {told} of {tokens}, because "
            "there are too many spans; leave this answer out"
        )
    mask = [1] * tokens
    for start, stop in spans:
        mask[start:stop] = [0] * (stop - start)
    return mask


def raw_logprobs(answer: Mapping[str, Any]) -> list[float]:
    """Return the logprob of each token of an answer before processors.

    At tokens without edits it is SGLang's own logprob.

    Args:
        answer: As for :func:`loss_mask`, of a request with ``return_logprob`` and with
            ``raw_logprobs`` in its ``custom_params``.

    Raises:
        NotRun: The answer does not report them.
    """
    meta, report = _told(RAW, answer)
    try:
        logprobs, edited = meta["output_token_logprobs"], report[RAW]
    except KeyError as error:
        raise NotRun(
            f"{RAW}: expected output_token_logprobs, and {RAW} in the report, got an answer "
            f"without {error}; ask for it with return_logprob, and {RAW} in custom_params"
        ) from None
    own = [logprob for logprob, *_ in logprobs]
    for position, logprob in edited:
        own[position] = logprob
    return own


def _told(name: str, answer: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the ``meta_info`` of an answer, and the report in it.

    Raises:
        NotRun: The answer has no report.
    """
    meta = answer.get("meta_info")
    report = meta.get(REPORT) if isinstance(meta, Mapping) else None
    if not isinstance(meta, Mapping) or not isinstance(report, Mapping):
        raise NotRun(
            f'{name}: expected meta_info with "{REPORT}", got {shown([*(meta or ())], 200)}; a '
            "server with sglang-lp adds it to answers to requests with a processor"
        )
    return meta, report
