"""Shares the time of a run among what is left to ask."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.evidence.arms import OURS, SECTIONS, STOCK

if TYPE_CHECKING:
    from benchmarks.evidence.answers import Ask, Kept

__all__ = ["MEASURED", "Time", "unanswered"]

#: The servers whose speed is measured, and what each may take of the time.
MEASURED: Mapping[str, float] = {OURS: 0.1, STOCK: 0.05}


def unanswered(kept: Kept, server: str, section: str) -> Sequence[Ask]:
    """Return a section's requests for a server that have no answer yet."""
    asks = SECTIONS[section][0](kept)
    return [ask for ask in asks if ask.server == server and kept.get(ask) is None]


class Time:
    """The time of a run. Time that a section does not need goes to the others.

    Args:
        seconds: For all of it.
        servers: In the order in which they are asked.
        kept: The answers so far.
    """

    def __init__(self, seconds: float, servers: Sequence[str], kept: Kept) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._kept = kept
        self._visits = [(server, section) for server in servers for section in SECTIONS]

    @property
    def is_over(self) -> bool:
        """Whether the run should end."""
        return time.monotonic() >= self._end

    def for_section(self, server: str, section: str) -> float:
        """Return the moment of the monotonic clock at which a section of a server is over."""
        visits = self._visits[self._visits.index((server, section)) :]
        weights = [self._weight(*visit) for visit in visits]
        measured = sum(MEASURED.get(one, 0.0) for one in {one for one, _ in visits})
        now = time.monotonic()
        free = max(0.0, self._end - now - self._seconds * measured)
        return now + free * weights[0] / (sum(weights) or 1.0)

    def for_speed(self, server: str) -> float:
        """Return the moment at which measuring the speed of a server is over.

        Where nothing is left to ask, that is the end of the run.
        """
        if not any(self._weight(*visit) for visit in self._visits):
            return self._end
        return time.monotonic() + self._seconds * MEASURED[server]

    def _weight(self, server: str, section: str) -> float:
        asks_of, share = SECTIONS[section]
        every = sum(1 for _ in asks_of(self._kept))
        return share * len(unanswered(self._kept, server, section)) / max(every, 1)
