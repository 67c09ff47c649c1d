"""The search on one server: draws cases, judges them, makes failing ones small and certain."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from hunt.cutting import shrink
from hunt.invariants import INVARIANTS, TIMES, Violation, same_alone, violations
from hunt.reproducing import Failing, write
from hunt.requests import Sent, cases
from hunt.wishes import names_of
from support.processes import tail

if TYPE_CHECKING:
    from hunt.asking import Asked, Client
    from hunt.servers import Kind

__all__ = ["Finding", "Search", "Seen"]

#: Cases from one seed of Hypothesis, which draws the first tenth of them small.
_CASES = 40
#: Seconds for making one failing case smaller.
_SHRINKING = 6.0
#: What only makes a request one of this toolkit.
_OWN_FIELDS = ("custom_logit_processor", "custom_params", "metadata")


@dataclass(frozen=True)
class Finding:
    """A rule that did not hold.

    Attributes:
        violation: What was seen.
        script: Reproduces it.
        is_sure: Whether it was seen again when the case was asked once more.
        seconds: Of the search until it was seen first.
        server: Name of the kind.
    """

    violation: Violation
    script: Path
    is_sure: bool
    seconds: float
    server: str


@dataclass
class Seen:
    """The findings and counts of a hunt so far, on all servers.

    Attributes:
        findings: By what two sightings of one fault share.
        again: How often each was seen afterwards.
        cases: Number of them, by server.
        requests: By endpoint, processor or server: how many there were, and were refused.
    """

    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    again: Counter[tuple[str, str]] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Counter[str]] = field(default_factory=dict)
    refused: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, kind: Kind, asked: Asked) -> None:
        """Count a case."""
        self.cases[kind.name] += 1
        for sent, reply in zip(asked.sent, asked.replies, strict=True):
            keys = [("endpoint", sent.path), ("server", kind.name)]
            keys += [("processor", name) for name in {*names_of(sent)}]
            for by, key in keys:
                self.requests.setdefault(by, Counter())[key] += 1
                self.refused.setdefault(by, Counter())[key] += 400 <= reply.status < 500


@dataclass
class Search:
    """A search on one server.

    Attributes:
        kind: Of the server.
        client: Of the server.
        seen: Gets what is found.
        seed: Of the cases.
        scripts: Directory of the scripts that reproduce what is found.
        invariants: Names of the rules; all of them without any.
        say: Tells what is found as soon as it is.
    """

    kind: Kind
    client: Client
    seen: Seen
    seed: int
    scripts: Path
    invariants: Sequence[str] = ()
    say: Callable[[str], None] = print
    _rounds: Iterator[int] = field(default_factory=itertools.count)

    def run(self, seconds: float) -> None:
        """Search for so long, or until the server ends; a second call goes on with other cases.

        Args:
            seconds: From now on; a failing case that is made smaller then is finished first.
        """
        begin = time.monotonic()
        with contextlib.suppress(_OverError):
            for number in self._rounds:
                self._round(f"{self.seed} {number}", begin, seconds)

    def _round(self, seed: str, begin: float, seconds: float) -> None:
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=_CASES,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=[*HealthCheck],
        )
        @hypothesis.given(cases(self.kind), st.integers(0, len(self.client.canaries) - 1))
        def judge(case: list[Sent], canary: int) -> None:
            if time.monotonic() - begin > seconds or not self.client.is_alive:
                raise _OverError
            asked = self.client.ask(case, canary)
            self.seen.count(self.kind, asked)
            for violation in [*violations(asked, self.kind, self.invariants)]:
                self._take(case, canary, violation, time.monotonic() - begin)

        judge()

    def _take(self, case: list[Sent], canary: int, violation: Violation, seconds: float) -> None:
        """Make sure of a fault that was not seen before, and write it down."""
        if violation.signature in self.seen.findings:
            self.seen.again[violation.signature] += 1
            return
        until = time.monotonic() + _SHRINKING
        newest = violation

        def fails(smaller: Sequence[Sent]) -> bool:
            nonlocal newest
            found = self._find(smaller, canary, violation)
            newest = found or newest
            return found is not None

        # A server that ended is not started again.
        is_sure = self.client.is_alive and fails(case)
        if not is_sure and violation.invariant in TIMES:
            return  # the machine had other work
        if is_sure and self.client.is_alive:
            case = shrink(case, lambda smaller: time.monotonic() < until and fails(smaller))
            is_sure = fails(case)
        own = self.client.canaries[canary]
        failing = Failing(
            newest,
            (INVARIANTS[violation.invariant].__doc__ or "").strip(),
            case,
            own if violation.invariant == same_alone.__name__ else None,
        )
        script = write(self.scripts, self.kind, failing, self.seed)
        finding = Finding(newest, script, is_sure, seconds, self.kind.name)
        self.seen.findings[violation.signature] = finding
        self.say(told(finding))
        if not self.client.is_alive:
            self.say(tail(self.client.server.log))

    def _find(self, case: Sequence[Sent], canary: int, violation: Violation) -> Violation | None:
        """Ask a case once more, and return the same violation."""
        asked = self.client.ask(case, canary)
        if violation.invariant in TIMES:
            base = self.client.ask([_without(sent) for sent in case], canary)
            asked = replace(asked, gap=asked.gap - base.gap, step=asked.step - base.step)
        found = violations(asked, self.kind, [violation.invariant])
        return next((one for one in found if one.signature == violation.signature), None)


class _OverError(BaseException):
    """The time is over; not for Hypothesis to look into."""


def told(finding: Finding) -> str:
    """Describe a finding in a line or two."""
    sure = "" if finding.is_sure else ", not seen again"
    return (
        f"FOUND on {finding.server} after {finding.seconds:.0f} s{sure}: "
        f"{finding.violation.invariant}: {finding.violation.text[:300]}\n    {finding.script}"
    )


def _without(sent: Sent) -> Sent:
    """Return the same load without processors."""
    body = {name: one for name, one in sent.body.items() if name not in _OWN_FIELDS}
    sampling = body.get("sampling_params")
    if isinstance(sampling, dict):
        sampling = [sampling]
    if sampling:
        plain = [{k: v for k, v in one.items() if k != "custom_params"} for one in sampling]
        is_list = isinstance(body["sampling_params"], list)
        body["sampling_params"] = plain if is_list else plain[0]
    return replace(sent, body=body)
