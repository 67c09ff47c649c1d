"""Metrics on SGLang's own ``/metrics``, for servers with ``--enable-metrics``.

Each process writes its own files of ``prometheus_client``'s multiprocess mode, which SGLang sets
up, and the HTTP process adds them up. Every label has values of a fixed set: classes that the
operator allowed, catalogues of the policy, gates, reasons. ``docs/monitoring.md`` explains each
metric.

The label ``processor`` names a processor that the client may know of. A request with several of
them counts once for each; a request that runs only those of ``[[always]]`` counts as ``always``. A
request that failed counts once, for the class that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import Contradiction
from sglang_lp.faults import ALWAYS
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from sglang_lp.catalogue.opened import Catalogue, Renewal
    from sglang_lp.server.gate.coded import Coded

#: Values of the label ``ended`` of blocks.
_ENDS = ("model", "tool_call", "budget", "soft", "loop", "early_end", "open")

#: Counters: name -> what is counted, and the labels.
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "requests": (
        "Requests by processor; none: no processor ran; always: only those of [[always]] ran.",
        ("processor",),
    ),
    "refusals": (
        "Refused requests; processor: the class that refused a parameter.",
        ("gate", "reason", "processor"),
    ),
    "thinking_blocks": (
        f"Thinking blocks by their end: {', '.join(_ENDS)}.",
        ("ended",),
    ),
    "thinking_tokens": ("Tokens in thinking blocks with a budget.", ()),
    "forced_tokens": ("Tokens that were forced.", ()),
    "faults": (
        "Requests that ended with HTTP 500, by processor; kind: processor or toolkit failed.",
        ("processor", "kind"),
    ),
    "contradictions": (
        "Requests that ended because what they asked for left no token: the client's error.",
        ("processor",),
    ),
    "awaited_steps": (
        "Steps in which a processor read tokens that the scheduler had not processed yet.",
        (),
    ),
    "beams": (
        "Beams of finished searches with processors; dead: too few continuations were possible.",
        ("ended",),
    ),
    "catalogue_items": ("Items in answers, by catalogue.", ("catalogue",)),
    "catalogue_versions": (
        "New files of catalogues; outcome: taken_up or refused. Every process reads each file.",
        ("gate", "catalogue", "outcome"),
    ),
}
#: Values of the label ``kind``.
_KINDS = ("processor", "toolkit")
#: Value of the label ``processor`` of faults of no single class.
_UNKNOWN = "unknown"
#: Values of the label ``outcome``.
_TAKEN_UP, _REFUSED = "taken_up", "refused"
_STEP = "sglang_lp_step_seconds"
_WRITTEN = "sglang_lp_catalogue_timestamp_seconds"
_INFO = "sglang_lp_info"

#: Every metric as it is scraped, with its help.
ABOUT: Mapping[str, str] = {
    **{f"sglang_lp_{name}_total": about for name, (about, _) in _COUNTERS.items()},
    _STEP: "Time of a step in all its processors, on the host.",
    _WRITTEN: "Unix time at which the file of the version in use was written, by catalogue.",
    _INFO: "1 on a guarded server: its version of sglang-lp, and its policy's fingerprint.",
}
NAMES = (*ABOUT,)
#: The labels of each metric.
LABELS: Mapping[str, tuple[str, ...]] = {
    **{f"sglang_lp_{name}_total": labels for name, (_, labels) in _COUNTERS.items()},
    _STEP: (),
    _WRITTEN: ("catalogue",),
    _INFO: ("version", "policy"),
}

#: Seconds; a step of a model takes 5 to 50 ms.
_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)

_writing: Metrics | None = None


class Metrics:
    """The metrics, as one process writes them.

    Args:
        policy: Fingerprint of the policy.
        processors: Names of the classes that a request can run and its client may know of.
        catalogues: The open catalogues.
    """

    def __init__(
        self, policy: str, processors: Iterable[str], catalogues: Iterable[Catalogue]
    ) -> None:
        # Imported once SGLang has set where the files of all processes are.
        from prometheus_client import Counter, Gauge, Histogram

        self._counters = {
            name: Counter(f"sglang_lp_{name}_total", about, labels)
            for name, (about, labels) in _COUNTERS.items()
        }
        self._seconds = Histogram(_STEP, ABOUT[_STEP], buckets=_BUCKETS)
        info = Gauge(_INFO, ABOUT[_INFO], LABELS[_INFO], multiprocess_mode="max")
        info.labels(version("sglang-lp"), policy).set(1)
        self._written = Gauge(_WRITTEN, ABOUT[_WRITTEN], LABELS[_WRITTEN], multiprocess_mode="min")
        # An alert on an increase misses the first fault of a series that begins with it.
        for name in dict.fromkeys([*processors, ALWAYS, _UNKNOWN]):
            for kind in _KINDS:
                self._counters["faults"].labels(name, kind)
        #: Names of the catalogues.
        self._catalogues: list[str] = []
        for one in catalogues:
            self._catalogues.append(one.name)
            self._written.labels(one.name).set(one.written)
            for gate in Gate:
                for outcome in (_TAKEN_UP, _REFUSED):
                    self._counters["catalogue_versions"].labels(gate.value, one.name, outcome)

    def begin(self, names: Iterable[str]) -> None:
        """Count a request that the scheduler took, by its processors."""
        for name in names:
            self._counters["requests"].labels(name).inc()

    def fail(self, error: Coded, names: Sequence[str] | None = None) -> None:
        """Count a request that an error ended, once; an error of the client counts as none.

        Args:
            error: The error.
            names: Values of the label ``processor`` for the request; ``None`` if it has not begun.
        """
        if not error.by_client:
            kind = "toolkit" if error.culprit is None else "processor"
            label = error.culprit or _UNKNOWN if names is None else _label(error.culprit, names)
            self._counters["faults"].labels(label, kind).inc()

    def refuse(self, gate: str, reason: str, processor: str) -> None:
        """Count a refusal; ``processor`` is empty unless a known processor refused a parameter."""
        self._counters["refusals"].labels(gate, reason, processor).inc()

    def finish(self, reports: Sequence[Mapping[str, Any]], error: Coded | None) -> None:
        """Count how a request ended.

        Args:
            reports: As in ``meta_info["sglang_lp"]``: of its answer, or of each of its beams.
            error: The error that ended it, or ``None``.
        """
        names = labels_of(reports[0]["processors"])
        for report in reports:
            self._counters["forced_tokens"].inc(report["forced"])
            # A class of the operator may report anything under these names.
            self._count_blocks(report.get("thinking"))
            self._count_items(report.get("catalogue"))
        if error is not None:
            self.fail(error, names)
        if error is not None and error.code == Contradiction.code:
            for name in names:
                self._counters["contradictions"].labels(name).inc()

    def _count_blocks(self, told: Any) -> None:
        """Count the thinking blocks of a report."""
        for block in told if isinstance(told, list) else ():
            match block:
                case {"tokens": int(tokens), "ended": ended} if tokens >= 0:
                    if (end := ended or "open") in _ENDS:
                        self._counters["thinking_blocks"].labels(end).inc()
                        self._counters["thinking_tokens"].inc(tokens)

    def _count_items(self, told: Any) -> None:
        """Count the items of a report."""
        match told:
            case {"name": name, "items": list(items)} if name in self._catalogues:
                self._counters["catalogue_items"].labels(name).inc(len(items))

    def end_beams(self, alive: int, dead: int) -> None:
        """Count the beams of a search that ended with answers."""
        self._counters["beams"].labels("alive").inc(alive)
        self._counters["beams"].labels("dead").inc(dead)

    def renew(self, gate: Gate, renewal: Renewal, now: Catalogue) -> None:
        """Count a file that replaced the file of a catalogue.

        Args:
            gate: The gate of this process.
            renewal: The outcome.
            now: The version in use.
        """
        outcome = _TAKEN_UP if renewal.problem is None else _REFUSED
        self._counters["catalogue_versions"].labels(gate.value, now.name, outcome).inc()
        self._written.labels(now.name).set(now.written)

    def step(self, seconds: float, *, awaited: bool) -> None:
        """Count a step with processors."""
        self._seconds.observe(seconds)
        if awaited:
            self._counters["awaited_steps"].inc()


def _label(culprit: str | None, names: Sequence[str]) -> str:
    """Return the label of a failed request: its class that failed, or its only processor.

    Args:
        culprit: The class that failed, if one did by itself.
        names: Values of the label ``processor`` for the request.
    """
    if culprit is not None and culprit in {*names, ALWAYS}:
        return culprit
    return names[0] if len(names) == 1 else _UNKNOWN


def labels_of(names: Sequence[str]) -> Sequence[str]:
    """Return the values of the label ``processor`` for a request that runs processors.

    Args:
        names: Names of its processors that the client may know of.
    """
    return names or (ALWAYS,)


def start(
    server_args: Any, policy: str, processors: Iterable[str], catalogues: Iterable[Catalogue]
) -> None:
    """Write metrics from now on, if the server has any.

    Args:
        server_args: SGLang's.
        policy: Fingerprint of the policy.
        processors: As for :class:`Metrics`.
        catalogues: The open catalogues.
    """
    global _writing  # noqa: PLW0603 - Prometheus has one registry in a process, too
    if _writing is None and getattr(server_args, "enable_metrics", False):
        _writing = Metrics(policy, processors, catalogues)


def writing() -> Metrics | None:
    """Return the metrics of this process, ``None`` if it writes none."""
    return _writing
