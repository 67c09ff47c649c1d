"""The answers of a beam search: dead beams are dropped, the others get their report."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import SglangLpError
from sglang_lp.faults import from_signal
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.scheduler.beams.steps import Beams, release
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.scheduler.report import count, describe, put
from sglang_lp.wire.names import REPORT

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

#: Attribute of SGLang's ``BeamGroup``: the report of each answer, best first.
_REPORTS = "sglang_lp_reports"

_FAILED = "internal error of sglang-lp: the answers of a beam search could not be reported"


def finish(_result: None, _coordinator: Any, group: Any) -> None:
    """Write the reports of a search that is over, and release its rows.

    A hook after SGLang's own end of a group, which runs once. A search that ends without a finish
    reason was aborted in SGLang's queue, or because the KV cache is full; SGLang has answered it.
    """
    leader = group.leader
    try:
        beams = release(group)
        if beams is not None and leader.finished_reason is not None:
            _finish(group, leader, beams)
    except BaseException as error:
        if from_signal(error):
            raise
        if not isinstance(error, SglangLpError):
            logger.exception(_FAILED)
            error = SglangLpError(_FAILED)
        group.final_results = []
        end_request(leader, error, kept=len(leader.output_ids))


def _finish(group: Any, leader: Any, beams: Beams) -> None:
    alive = [one for one in group.final_results if one.cum_logprob > -math.inf]
    group.final_results = alive
    answers: Sequence[Sequence[int]] = [one.tokens for one in alive[: group.num_return]]
    prompt_ids = leader.origin_input_ids
    told = answers or [()]
    logs = beams.tree.edit_logs(told)
    reports = [
        describe(beams.leader, prompt_ids, answer, log, leader.finished_reason)
        for answer, log in zip(told, logs, strict=True)
    ]
    setattr(group, _REPORTS, reports)
    if not answers:
        put(leader.finished_reason, reports[0])
    count(reports, leader.finished_reason)
    metrics = writing()
    if answers and metrics is not None:
        metrics.end_beams(len(alive), group.beam_width - len(alive))


def tell(output: Any, req: Any) -> None:
    """Put the report of each answer into its finish reason: a hook after SGLang packed them.

    Args:
        output: SGLang's ``BeamSearchOutput``, or ``None`` for a search without answers.
        req: The leader.
    """
    reports = getattr(req.beam_group, _REPORTS, None)
    if output is None or reports is None:
        return
    for sequence, report in zip(output.sequences, reports, strict=False):  # SGLang's thread
        sequence.finish_reason = {**sequence.finish_reason, REPORT: report}
