"""Ends of requests: by an error, or by the decision of a processor.

:func:`end_request` is the only way to end a request with an error at once.

A processor decides the end before its token is sampled. Drafted tokens before it may be rejected,
and an older result may still be pending. ``req.to_finish`` does not fit: SGLang applies it to the
next result that it processes, and keeps tokens that a verify step accepted after the end. So the
request carries the decision until SGLang checks the tokens of the step for an end.

The decision applies if the expected tokens before it were committed. Exception: SGLang's own
condition (an end token, a stop string, ``max_new_tokens``) ended the request at an earlier token of
the step.

An error ends the request before its token, which was sampled without the failed edits. The client
does not get this token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sglang_lp.errors import SglangLpError
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.scheduler.reasons import error_of, error_reason
from sglang_lp.server.scheduler.withheld import withhold
from sglang_lp.trust.audit import safe_id

logger = logging.getLogger(__name__)

_INTERNAL = "internal error of sglang-lp: the request's processors did not run to its end"

#: Attribute of SGLang's finish reason: most output tokens that the client gets.
_KEPT = "sglang_lp_kept"
#: Attribute of SGLang's request: the decided ends, freed with the request.
_ENDINGS = "sglang_lp_endings"


def end_request(
    req: Any,
    error: SglangLpError | None = None,
    *,
    begun: bool = True,
    kept: int | None = None,
) -> None:
    """End a request with an error, which says whose fault it is.

    The log line, the metric, the HTTP status and the code in the answer are those of the error.

    Args:
        req: SGLang's request, or a proxy of it.
        error: ``None`` for a failure of sglang-lp itself.
        begun: Whether SGLang may have begun with the request. If not, SGLang computes one token of
            an empty prompt, which the client does not get.
        kept: ``None`` to end the request when SGLang processes its next, or its pending, result;
            the client gets the tokens that are processed already. A number ends it now. Either
            way the first error stays, unless only a later one is the client's; a number is the most
            output tokens that the client gets.
    """
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    error = error or SglangLpError(_INTERNAL)
    reason, coded = error_reason(error), Coded.of(error)
    try:
        if kept is not None:
            if isinstance(req.finished_reason, FINISH_ABORT):
                return withhold(req, kept)
            req.finished_reason = reason
            withhold(req, kept)
        elif begun:
            processed = len(getattr(req, "output_ids", ()))
            first = getattr(req, "to_finish", None)
            if isinstance(first, FINISH_ABORT) and not _explains(coded, error_of(first)):
                setattr(first, _KEPT, min(processed, getattr(first, _KEPT, processed)))
                return None
            setattr(reason, _KEPT, processed)
            req.to_finish = reason
        else:
            setattr(reason, _KEPT, 0)
            req.set_finish_with_abort(coded.message, coded.status, coded.kind)
            req.to_finish = reason
    except ReferenceError:  # SGLang has freed the request
        return None
    try:
        if begun or not coded.by_client:  # a refusal is in the audit trail
            _log(req, coded)
        metrics = writing()
        # A request that ends later counts then, with its report.
        if metrics is not None and (kept is not None or not begun):
            metrics.fail(coded)
    except Exception:  # the request has its end
        logger.exception("sglang-lp: the end of a request is not logged or not counted")
    return None


def _explains(later: Coded, first: Coded | None) -> bool:
    """Tell whether a later error is the client's, and explains one that seemed the server's."""
    return first is not None and later.by_client and not first.by_client


def _log(req: Any, error: Coded) -> None:
    rid = safe_id(getattr(req, "rid", None))
    logger.warning("request %s ended: %s", rid, error.message)


class _Ending(NamedTuple):
    #: Length of ``output_ids`` when the end was decided, and the tokens expected to follow.
    processed: int
    expected: Sequence[int]
    #: Number of output tokens, processed and pending, when the step began.
    begun: int
    reason: Any

    @property
    def length(self) -> int:
        """Number of output tokens, including the token that the step samples."""
        return self.processed + len(self.expected) + 1


def end_with_token(req: Any, pending: Sequence[int], path: Sequence[int], reason: Any) -> None:
    """End a request with the token that this step samples at one node of its draft.

    Args:
        req: SGLang's request, or a proxy of it.
        pending: Sampled tokens that are not in ``req.output_ids`` yet.
        path: Drafted tokens after the root, up to and including the node; empty for the root, and
            without drafts.
        reason: SGLang's finish reason.
    """
    if req.disagg_kv_sender is not None:
        # A prefill server samples one token, and checks only to_finish.
        req.to_finish = reason
        return
    processed = len(req.output_ids)
    ending = _Ending(processed, (*pending, *path), processed + len(pending), reason)
    setattr(req, _ENDINGS, [*getattr(req, _ENDINGS, ()), ending])


def end_at_first(req: Any, reason: Any) -> None:
    """End a request with its first token, which the prefill server has sampled.

    Args:
        req: SGLang's request; the token is its whole output, not checked for an end yet.
        reason: SGLang's finish reason.
    """
    setattr(req, _ENDINGS, [_Ending(0, (), 0, reason)])


def begin_anew(req: Any) -> None:
    """Decide the ends of a request without output, which is retracted.

    SGLang drops the output of a request with ``input_embeds``, so expected tokens tell nothing. No
    step edits the row of a failed request, so an error at a root stays; other ends come again.

    Args:
        req: SGLang's request.
    """
    endings: list[_Ending] | None = getattr(req, _ENDINGS, None)
    if endings is None:
        return
    delattr(req, _ENDINGS)
    for one in endings:
        if error_of(one.reason) is not None and one.length == one.begun + 1:
            setattr(one.reason, _KEPT, 0)
            req.to_finish = req.to_finish or one.reason
            return


def update_finish_state(
    original: Callable[[Any, int], None], req: Any, new_accepted_len: int = 1
) -> None:
    """Decide whether a request ends: a hook around SGLang's own decision."""
    endings: list[_Ending] | None = getattr(req, _ENDINGS, None)
    if endings is None:
        original(req, new_accepted_len)
        return withhold_unkept(req)
    # An end from outside of the answer has precedence, as when the client disconnected.
    decided_elsewhere = req.finished() or req.to_finish is not None
    original(req, new_accepted_len)
    output_ids = req.output_ids
    count = len(output_ids)
    rest = [one for one in endings if one.begun >= count]
    if rest and not req.finished():
        setattr(req, _ENDINGS, rest)
    else:
        delattr(req, _ENDINGS)
    withhold_unkept(req)
    if req.finished():
        # finished_len is None if SGLang keeps the whole output.
        count = count if req.finished_len is None else req.finished_len
    due = [one for one in endings if one.begun < len(output_ids)]
    # A step may decide to end the answer with its token, and then fail to edit the row.
    for one in sorted(due, key=lambda one: (one.length, error_of(one.reason) is None)):
        if one.length > count:
            break
        if output_ids[one.processed : one.length - 1].tolist() == list(one.expected):
            if not decided_elsewhere:
                req.finished_reason, req.finished_len = one.reason, one.length
            error = error_of(one.reason)
            if error is not None:
                withhold(req, one.length - 1)
                _log(req, error)
            break
    return None


def withhold_unkept(req: Any) -> None:
    """Withhold the tokens of a finished request that :func:`end_request` did not keep."""
    kept = getattr(req.finished_reason, _KEPT, None)
    if kept is not None:
        withhold(req, kept)
