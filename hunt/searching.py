"""The search on one server: draws cases, judges them, makes failing ones small and certain."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from hunt.cases import cases
from hunt.cutting import shrink
from hunt.deaths import cause
from hunt.reproducing import Failing, write
from hunt.rules import INVARIANTS, TIMES, Violation, ends, others, violations
from hunt.wishes import names_of

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.sent import Sent
    from hunt.servers import Kind
    from hunt.serving import Served

__all__ = ["Finding", "Search", "Seen"]

#: Cases from one seed of Hypothesis, which draws the first tenth of them small.
_CASES = 40
#: Seconds for making one failing case smaller, and starts of a server that the case ends.
_SHRINKING, _RESTARTS = 10.0, 3
#: Faults of one rule and sort with other odd fields, of which so many are told apart.
_ALIKE = 2
#: Rules about the neighbour's answer.
_OF_CANARIES = (others.same_alone.__name__,)
#: What only makes a request one of this toolkit.
_OWN_FIELDS = ("custom_logit_processor", "custom_params", "metadata")


#: What two sightings of one fault share.
Fault = tuple[str, str, frozenset[str]]


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
        findings: By rule, sort, and the extreme fields of the smallest case.
        again: How often each was seen afterwards.
        cases: Number of them, by server.
        requests: By endpoint, processor or server: how many there were, and were refused.
    """

    findings: dict[Fault, Finding] = field(default_factory=dict)
    again: Counter[Fault] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    requests: dict[str, Counter[str]] = field(default_factory=dict)
    refused: dict[str, Counter[str]] = field(default_factory=dict)

    def like(self, violation: Violation, odd: frozenset[str]) -> Fault | None:
        """Return the known fault that a violation shows again.

        Args:
            violation: What was seen.
            odd: The extreme fields of its case, which may have more of them than the known one.
        """
        known = [fault for fault in self.findings if fault[:2] == violation.signature]
        fewer = (fault for fault in known if fault[2] <= odd or len(known) >= _ALIKE)
        return next(fewer, None)

    def count(self, kind: Kind, asked: Asked) -> None:
        """Count a case."""
        self.cases[kind.name] += 1
        for sent, reply in zip(asked.sent, asked.replies, strict=True):
            keys = [("endpoint", sent.path), ("server", kind.name)]
            by = "odd field" if sent.odd else "processor"
            keys += [(by, name) for name in {*names_of(sent)}]
            for of, key in keys:
                self.requests.setdefault(of, Counter())[key] += 1
                self.refused.setdefault(of, Counter())[key] += 400 <= reply.status < 500


@dataclass
class Search:
    """A search on one server.

    Attributes:
        served: The server, which is started again if a case ends it.
        seen: Gets what is found.
        seed: Of the cases.
        scripts: Directory of the scripts that reproduce what is found.
        invariants: Names of the rules; all of them without any.
        say: Tells what is found as soon as it is.
    """

    served: Served
    seen: Seen
    seed: int
    scripts: Path
    invariants: Sequence[str] = ()
    say: Callable[[str], None] = print
    _rounds: Iterator[int] = field(default_factory=itertools.count)
    _begin: float = 0.0
    _deadly: list[frozenset[str]] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """Of the server."""
        return self.served.kind

    def run(
        self, seconds: float = math.inf, most: float = math.inf, rounds: int | None = None
    ) -> None:
        """Search for so long; a call after whole rounds goes on with the following cases.

        Args:
            seconds: From now on; a failing case that is made smaller then is finished first.
            most: Cases of all searches on this kind of server.
            rounds: Of 40 cases; ``None`` for no limit.
        """
        self._begin = time.monotonic()
        with contextlib.suppress(_OverError):
            for number in itertools.islice(self._rounds, rounds):
                self._round(f"{self.seed} {number}", seconds, most)

    def _round(self, seed: str, seconds: float, most: float) -> None:
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=_CASES,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=[*HealthCheck],
        )
        @hypothesis.given(cases(self.kind), st.integers(0, 99))
        def judge(case: list[Sent], canary: int) -> None:
            spent = time.monotonic() - self._begin
            if spent > seconds or self.seen.cases[self.kind.name] >= most:
                raise _OverError
            if any(fields <= _odd_in(case) for fields in self._deadly):
                return  # it would end the server once more
            asked = self._ask(case, canary)
            self.seen.count(self.kind, asked)
            for violation in [*violations(asked, self.kind, self.invariants)]:
                self._take(case, canary, violation)

        judge()

    def _ask(self, case: Sequence[Sent], canary: int) -> Asked:
        """Ask a case; if it ended the server, start another."""
        asked = self.served.client.ask(case, canary)
        if not asked.is_alive:
            asked = replace(asked, cause=cause(self.served.client.server.log))
            self.served.restart()
        return asked

    def _take(self, case: list[Sent], canary: int, violation: Violation) -> None:
        """Make sure of a fault that was not seen before, and write it down."""
        seconds = time.monotonic() - self._begin
        known = self.seen.like(violation, _odd_in(case))
        if known is not None:
            self.seen.again[known] += 1
            return
        newest = violation

        def fails(smaller: Sequence[Sent]) -> bool:
            nonlocal newest
            found = self._find(smaller, canary, violation)
            newest = found or newest
            return found is not None

        is_sure = fails(case)
        if not is_sure and violation.invariant in TIMES:
            return  # the machine had other work
        if is_sure:
            case = sorted(case, key=lambda sent: sent.path not in violation.sort)
            case = shrink(case, self._limited(fails, violation.invariant))
        if violation.invariant == ends.server_lives.__name__:
            self._deadly += [_odd_in(case)] if _odd_in(case) else []
        finding = self._write(case, canary, newest, is_sure=is_sure, seconds=seconds)
        self.seen.findings[(*violation.signature, _odd_in(case))] = finding
        self.say(told(finding))

    def _limited(
        self, fails: Callable[[Sequence[Sent]], bool], invariant: str
    ) -> Callable[[Sequence[Sent]], bool]:
        """Return a check of smaller cases that has an end: of time, or of starts of the server."""
        starts = self.served.starts + _RESTARTS
        until = time.monotonic() + (
            _SHRINKING if invariant != ends.server_lives.__name__ else 10 * _SHRINKING
        )

        def check(smaller: Sequence[Sent]) -> bool:
            is_over = time.monotonic() > until or self.served.starts > starts
            return not is_over and fails(smaller)

        return check

    def _write(
        self,
        case: Sequence[Sent],
        canary: int,
        violation: Violation,
        *,
        is_sure: bool,
        seconds: float,
    ) -> Finding:
        bodies = self.served.client.canaries
        failing = Failing(
            violation,
            (INVARIANTS[violation.invariant].__doc__ or "").strip(),
            case,
            bodies[canary % len(bodies)] if violation.invariant in _OF_CANARIES else None,
        )
        script = write(self.scripts, self.kind, failing, self.seed)
        return Finding(violation, script, is_sure, seconds, self.kind.name)

    def _find(self, case: Sequence[Sent], canary: int, violation: Violation) -> Violation | None:
        """Ask a case once more, and return the same violation."""
        asked = self._ask(case, canary)
        if not asked.is_alive and violation.invariant != ends.server_lives.__name__:
            for death in violations(asked, self.kind, self.invariants):
                self._take([*case], canary, death)
        if violation.invariant in TIMES:
            base = self._ask([_without(sent) for sent in case], canary)
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


def _odd_in(case: Sequence[Sent]) -> frozenset[str]:
    """Return the odd fields of a case."""
    return frozenset().union(*(sent.oddities for sent in case))


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
