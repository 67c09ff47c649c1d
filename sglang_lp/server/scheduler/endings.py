"""Ends of requests that processors decide on, made when SGLang processes the token they follow.

A processor speaks of a token that is not sampled yet, maybe behind drafted ones that may not be
accepted, and maybe while an older result is pending. ``req.to_finish`` fits none of that: SGLang
takes it with the next result that it processes, and keeps what a verify step accepted behind the
token. So the decision stays with the request until SGLang looks for an end among the tokens of
the step. It counts if the tokens before it were committed, and unless a condition of SGLang's own
(an end token, a stop string, ``max_new_tokens``) ended the request at an earlier token of the step.

An error ends before its token, which was sampled without the edits that failed. No client gets it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sglang_lp.server.scheduler.reasons import is_error, withhold, withhold_unkept

logger = logging.getLogger(__name__)

#: Attribute of SGLang's request; it lives and dies with it.
_ENDINGS = "sglang_lp_endings"


class _Ending(NamedTuple):
    #: Of ``output_ids`` when it was decided, and the tokens expected to follow those.
    processed: int
    expected: Sequence[int]
    #: Length of the history at which the step began.
    begun: int
    reason: Any

    @property
    def length(self) -> int:
        """Number of output tokens up to and including the one that the step samples."""
        return self.processed + len(self.expected) + 1


def end_request(req: Any, pending: Sequence[int], path: Sequence[int], reason: Any) -> None:
    """End a request with the token that this step samples at one node of its draft.

    Args:
        req: SGLang's request, or a proxy of it.
        pending: Tokens that were sampled, and are not in ``req.output_ids`` yet.
        path: Drafted tokens from behind the root to the node; empty for the root, and where there
            are no drafts.
        reason: SGLang's finish reason.
    """
    if req.disagg_kv_sender is not None:
        # A server that only prefills samples one token, and looks at nothing else.
        req.to_finish = reason
        return
    processed = len(req.output_ids)
    ending = _Ending(processed, (*pending, *path), processed + len(pending), reason)
    setattr(req, _ENDINGS, [*getattr(req, _ENDINGS, ()), ending])


def end_at_first(req: Any, reason: Any) -> None:
    """End a request with its first token, which another server has sampled.

    Args:
        req: SGLang's request; the token is its whole output, and not looked at yet.
        reason: SGLang's finish reason.
    """
    setattr(req, _ENDINGS, [_Ending(0, (), 0, reason)])


def update_finish_state(
    original: Callable[[Any, int], None], req: Any, new_accepted_len: int = 1
) -> None:
    """Decide whether a request ends: around SGLang's own decision."""
    endings: list[_Ending] | None = getattr(req, _ENDINGS, None)
    if endings is None:
        original(req, new_accepted_len)
        return withhold_unkept(req)
    # An end that comes from outside of the answer, as of a client that left, comes first.
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
        # SGLang leaves it open where the whole output stays.
        count = count if req.finished_len is None else req.finished_len
    due = [one for one in endings if one.begun < len(output_ids)]
    for one in sorted(due, key=lambda one: one.length):
        if one.length > count:
            break
        if output_ids[one.processed : one.length - 1].tolist() == list(one.expected):
            if not decided_elsewhere:
                req.finished_reason, req.finished_len = one.reason, one.length
            if is_error(one.reason):
                withhold(req, one.length - 1)
                logger.warning("request ended: %s", one.reason.message)
            break
    return None
