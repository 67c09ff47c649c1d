"""Metrics on SGLang's own ``/metrics``, for servers with ``--enable-metrics``.

Each process writes its own files of ``prometheus_client``'s multiprocess mode, which SGLang sets
up, and the HTTP process adds them up. Every label has values of a fixed set: classes that the
operator allowed, gates, reasons. ``docs/operating.md`` explains each metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["NAMES", "Metrics", "start", "writing"]

#: Counters: name -> what is counted, and the labels.
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "requests": (
        "Requests by processor; none: no processor ran; always: none but those of [[always]].",
        ("processor",),
    ),
    "refusals": ("Refused requests.", ("gate", "reason")),
    "thinking_blocks": (
        "Thinking blocks by what ended them: model, budget, soft, early_end, open.",
        ("ended",),
    ),
    "thinking_tokens": ("Tokens in thinking blocks with a budget.", ()),
    "forced_tokens": ("Tokens that were forced.", ()),
    "faults": ("Requests that ended because a processor failed.", ()),
    "contradictions": (
        "Requests that ended because what they asked for left no token.",
        (),
    ),
    "awaited_steps": (
        "Steps in which a processor read tokens that the scheduler had not processed yet.",
        (),
    ),
}
_STEP = "sglang_lp_step_seconds"

#: Every metric as it is scraped.
NAMES = (*(f"sglang_lp_{name}_total" for name in _COUNTERS), _STEP)

#: Seconds; a step of a model takes 5 to 50 ms.
_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)

_writing: Metrics | None = None


class Metrics:
    """Counters and a histogram, as one process writes them."""

    def __init__(self) -> None:
        # Imported once SGLang has set where the files of all processes are.
        from prometheus_client import Counter, Histogram

        self._counters = {
            name: Counter(f"sglang_lp_{name}_total", about, labels)
            for name, (about, labels) in _COUNTERS.items()
        }
        self._seconds = Histogram(
            _STEP, "Time of a step in processors, on the host.", buckets=_BUCKETS
        )

    def begin(self, names: Iterable[str]) -> None:
        """Count a request that the scheduler took, by its processors."""
        for name in names:
            self._counters["requests"].labels(name).inc()

    def refuse(self, gate: str, reason: str) -> None:
        """Count a refusal."""
        self._counters["refusals"].labels(gate, reason).inc()

    def finish(self, report: Mapping[str, Any], *, failed: bool, contradicts: bool) -> None:
        """Count how a request ended.

        Args:
            report: As in ``meta_info["sglang_lp"]``.
            failed: Whether the fault of a processor ended it.
            contradicts: Whether it ended because what it asked for left no token.
        """
        self._counters["forced_tokens"].inc(report["forced"])
        for block in report.get("thinking", ()):
            self._counters["thinking_blocks"].labels(block["ended"] or "open").inc()
            self._counters["thinking_tokens"].inc(block["tokens"])
        if failed:
            self._counters["faults"].inc()
        if contradicts:
            self._counters["contradictions"].inc()

    def step(self, seconds: float, *, awaited: bool) -> None:
        """Count a step with processors."""
        self._seconds.observe(seconds)
        if awaited:
            self._counters["awaited_steps"].inc()


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
