"""Report on the processors of a request, in ``meta_info["sglang_lp"]`` of its answer.

The report travels as JSON text in SGLang's finish reason, so it reaches only its own request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp._engine.history.attached import rows_of
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.scheduler.raw_logprobs import tell
from sglang_lp.server.scheduler.reasons import add, error_of
from sglang_lp.wire.names import REPORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp._engine.history.edit_log import EditLog
    from sglang_lp._engine.history.row import Row


def report(req: Any) -> None:
    """Write the report of a finished request into its finish reason.

    Args:
        req: SGLang's request, with its finish reason.

    Raises:
        ProcessorFault: The processor's own part failed, or is not JSON. The request then ends in
            an error: no answer succeeds without its report.
    """
    (row,) = rows_of([req.sampling_params.custom_params])
    if row is None:
        return
    kept = getattr(req, "finished_len", None)
    output_ids = req.output_ids if kept is None else req.output_ids[:kept]
    row.leave_form()  # which logs its edits
    text = describe(row, req.origin_input_ids, output_ids, row.edit_log, req.finished_reason)
    count([text], req.finished_reason)
    put(req.finished_reason, text)
    if row.host.raw is not None:
        tell(req.finished_reason, row.host.raw)


def describe(
    row: Row,
    all_prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    edit_log: EditLog,
    reason: Any,
) -> str:
    """Return the report of one answer as JSON.

    Args:
        row: Row of the request.
        all_prompt_ids: Token ids of the prompt and of the tokens that the request resumes.
        output_ids: Token ids of the answer.
        edit_log: Its edits; closed here.
        reason: SGLang's finish reason.

    Raises:
        ProcessorFault: As for :func:`report`.
    """
    prompt_ids, resumed_ids = row.split_prompt(all_prompt_ids)
    whole = [*resumed_ids, *output_ids] if resumed_ids else output_ids
    edit_log.finish(whole)
    phases = getattr(row.host, "phases", ())
    known = {
        "processors": [*getattr(row.host, "names", ())],
        **({"where": phases} if phases else {}),
        "policy": getattr(row.host, "policy", None),
        **edit_log.report(len(resumed_ids), len(output_ids)),
    }
    own: dict[str, Any] = {}
    try:
        forced = edit_log.forced.before(len(whole))
        for turn in row.turns:
            if turn.is_named:
                row.running = turn
                own |= turn.report(prompt_ids, whole, forced)
        row.running = None
        return orjson.dumps({**known, **own, **known}).decode()
    except BaseException as error:  # noqa: BLE001 - the class's own code
        fault = row.fault(error, when="in its report")
        count([orjson.dumps(known).decode()], reason)
        raise fault from None


def count(texts: Sequence[str], reason: Any) -> None:
    """Count the end of a request in the metrics.

    Args:
        texts: Its report, or that of each of its beams.
        reason: SGLang's finish reason.
    """
    metrics = writing()
    if metrics is not None:
        metrics.finish([orjson.loads(text) for text in texts], error_of(reason))


def put(reason: Any, text: str) -> None:
    """Put a report into SGLang's finish reason."""
    add(reason, {REPORT: text})
