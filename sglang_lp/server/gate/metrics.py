"""Metrics on SGLang's own ``/metrics``, for servers with ``--enable-metrics``.

Each process writes its own files of ``prometheus_client``'s multiprocess mode, which SGLang sets
up, and the HTTP process adds them up. Every label has values of a fixed set: classes that the
operator allowed, gates, reasons. ``docs/operating.md`` explains each metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["NAMES", "Metrics", "start", "writing"]

#: Every metric as it is scraped.
NAMES = (
    "sglang_lp_requests_total",
    "sglang_lp_refusals_total",
    "sglang_lp_thinking_blocks_total",
    "sglang_lp_thinking_tokens_total",
    "sglang_lp_forced_tokens_total",
    "sglang_lp_faults_total",
    "sglang_lp_step_seconds",
    "sglang_lp_awaited_steps_total",
)

#: Seconds; a step of a model takes 5 to 50 ms.
_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)

_writing: Metrics | None = None


class Metrics:
    """Counters and a histogram, as one process writes them."""

    def __init__(self) -> None:
        # Imported once SGLang has set where the files of all processes are.
        from prometheus_client import Counter, Histogram

        self._requests = Counter(
            "sglang_lp_requests_total",
            "Requests by processor that ran on them; none: no processor.",
            ["processor"],
        )
        self._refusals = Counter(
            "sglang_lp_refusals_total", "Refused requests.", ["gate", "reason"]
        )
        self._blocks = Counter(
            "sglang_lp_thinking_blocks_total",
            "Thinking blocks by what ended them: model, budget, soft, early_end, open.",
            ["ended"],
        )
        self._thought = Counter(
            "sglang_lp_thinking_tokens_total", "Tokens in thinking blocks with a budget."
        )
        self._forced = Counter("sglang_lp_forced_tokens_total", "Tokens that were forced.")
        self._faults = Counter(
            "sglang_lp_faults_total", "Requests that ended because a processor failed."
        )
        self._seconds = Histogram(
            "sglang_lp_step_seconds",
            "Time of a step in processors, on the host.",
            buckets=_BUCKETS,
        )
        self._awaited = Counter(
            "sglang_lp_awaited_steps_total",
            "Steps in which a processor read tokens that the scheduler had not processed yet.",
        )

    def begin(self, names: Iterable[str]) -> None:
        """Count a request that the scheduler took, by its processors."""
        for name in names:
            self._requests.labels(name).inc()

    def refuse(self, gate: str, reason: str) -> None:
        """Count a refusal."""
        self._refusals.labels(gate, reason).inc()

    def finish(self, report: Mapping[str, Any], *, failed: bool) -> None:
        """Count what became of a request.

        Args:
            report: As in ``meta_info["sglang_lp"]``.
            failed: Whether a processor's fault ended it.
        """
        self._forced.inc(report["forced"])
        for block in report.get("thinking", ()):
            self._blocks.labels(block["ended"] or "open").inc()
            self._thought.inc(block["tokens"])
        if failed:
            self._faults.inc()

    def step(self, seconds: float, *, awaited: bool) -> None:
        """Count a step with processors."""
        self._seconds.observe(seconds)
        if awaited:
            self._awaited.inc()


def start(server_args: Any) -> None:
    """Write metrics from now on, if the server has any.

    Args:
        server_args: SGLang's.
    """
    global _writing  # noqa: PLW0603 - Prometheus has one registry in a process, too
    if _writing is None and getattr(server_args, "enable_metrics", False):
        _writing = Metrics()


def writing() -> Metrics | None:
    """Return the metrics of this process, ``None`` if it writes none."""
    return _writing
