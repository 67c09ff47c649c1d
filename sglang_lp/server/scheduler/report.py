"""What an answer says of the processors that ran, in ``meta_info["sglang_lp"]``.

It travels as SGLang's ``customized_info``, with the last tokens of a request.
"""

from __future__ import annotations

from typing import Any

import orjson

from sglang_lp._engine.faults import as_fault
from sglang_lp._engine.rows import rows_of
from sglang_lp.client.answers import KEY
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.scheduler.reasons import PROCESSOR_FAILED

__all__ = ["report"]


class _AtTheEnd(list[Any]):
    """A value of ``customized_info`` that goes out whole, however SGLang slices it by tokens."""

    def __getitem__(self, _which: Any) -> Any:
        return [*self]


def report(req: Any) -> None:
    """Put the report on a finished request where SGLang takes it up.

    Args:
        req: SGLang's request. An answer without a report does not leave as a success.

    Raises:
        ProcessorFault: The processor's own part failed, or is no JSON.
    """
    (row,) = rows_of([req.sampling_params.custom_params])
    if row is None:
        return
    kept = getattr(req, "finished_len", None)
    output_ids = req.output_ids if kept is None else req.output_ids[:kept]
    prompt_ids, resumed_ids = row.split(req.origin_input_ids)
    whole = [*resumed_ids, *output_ids] if resumed_ids else output_ids
    acts = row.acts
    acts.finish(whole)
    known = {
        "processors": [*getattr(row.host, "names", ())],
        "policy": getattr(row.host, "policy", None),
        **acts.told(len(resumed_ids), len(output_ids)),
    }
    try:
        forced = acts.forced.before(len(whole))
        own = row.processor.report(row.request.params, prompt_ids, whole, forced)
        # What is no JSON would end this process on its way to the next one.
        made = orjson.loads(orjson.dumps({**known, **own, **known}))
    except BaseException as error:  # noqa: BLE001 - the class's own code
        raise as_fault(row.name, "in its report", error) from None
    metrics = writing()
    if metrics is not None:
        failed = getattr(req.finished_reason, PROCESSOR_FAILED, False)
        metrics.finish(made, failed=failed)
    given = getattr(req, "customized_info", None) or {}
    req.customized_info = {**given, KEY: _AtTheEnd([made])}
