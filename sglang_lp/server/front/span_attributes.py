"""Attributes of a request's OpenTelemetry span, where SGLang traces requests (``--enable-trace``).

SGLang asks for attributes only of requests that it traces.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from sglang_lp.wire.names import REPORT


def add_report(
    attributes: dict[str, Any],
    _manager: Any,
    state: Any,  # noqa: ARG001 - SGLang's parameter before the ones that are read
    recv_obj: Any,
    i: int,
    *_args: Any,
    **_kwargs: Any,
) -> None:
    """Add the report of a finished answer to the attributes of its span.

    Args:
        attributes: SGLang's, for the root span of the request; changed in place.
        state: SGLang's state of the request.
        recv_obj: SGLang's batch of outputs, whose finish reasons have the reports.
        i: Index of the answer in the batch.
    """
    text = (recv_obj.finished_reasons[i] or {}).get(REPORT)
    if text is None:  # no processor ran
        return
    report = orjson.loads(text)
    attributes["sglang_lp.processors"] = report["processors"]
    attributes["sglang_lp.policy"] = report["policy"]
    attributes["sglang_lp.forced"] = report["forced"]
    attributes["sglang_lp.edited"] = sum(stop - start for start, stop in report["edited"])
    with suppress(KeyError, TypeError):  # an allowed class may report anything as "thinking"
        blocks = [(block["tokens"], block["ended"] or "open") for block in report["thinking"]]
        attributes["sglang_lp.thinking.tokens"] = [tokens for tokens, _ in blocks]
        attributes["sglang_lp.thinking.ended"] = [ended for _, ended in blocks]
