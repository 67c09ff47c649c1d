"""Report on the processors of a request, in ``meta_info["sglang_lp"]`` of its answer.

The report travels as JSON text in SGLang's finish reason, so it reaches only its own request.
"""

from __future__ import annotations

from typing import Any

import orjson

from sglang_lp._engine.history.attached import rows_of
from sglang_lp.faults import as_fault
from sglang_lp.server.gate.metrics import labels_of, writing
from sglang_lp.server.scheduler.raw_logprobs import tell
from sglang_lp.server.scheduler.reasons import CONTRADICTS, FAULT
from sglang_lp.wire.names import REPORT

__all__ = ["report"]


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
    prompt_ids, resumed_ids = row.split_prompt(req.origin_input_ids)
    whole = [*resumed_ids, *output_ids] if resumed_ids else output_ids
    edit_log = row.edit_log
    edit_log.finish(whole)
    metrics = writing()
    known = {
        "processors": [*getattr(row.host, "names", ())],
        "policy": getattr(row.host, "policy", None),
        **edit_log.report(len(resumed_ids), len(output_ids)),
    }
    try:
        forced = edit_log.forced.before(len(whole))
        own = row.processor.report(row.request.params, prompt_ids, whole, forced)
        text = orjson.dumps({**known, **own, **known}).decode()
    except BaseException as error:  # noqa: BLE001 - the class's own code
        fault = as_fault(row.name, "in its report", error)
        if metrics is not None:
            metrics.fail(labels_of(known["processors"]), "processor")
        raise fault from None
    if metrics is not None:
        metrics.finish(
            orjson.loads(text),
            fault=getattr(req.finished_reason, FAULT, None),
            contradicts=getattr(req.finished_reason, CONTRADICTS, False),
        )
    said = {**req.finished_reason.to_json(), REPORT: text}
    req.finished_reason.to_json = said.copy  # SGLang calls only dict.copy, no plugin code
    if row.host.raw is not None:
        tell(req.finished_reason, row.host.raw)
