"""Rules of time, compared with the same case without processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hunt.wishes import names_of

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.rules.told import Found
    from hunt.servers import Kind

#: Seconds that the event loop may stand, and a step may take, beyond a case without processors.
MOST_GAP, MOST_STEP = 1.0, 0.1


def loop_answers(asked: Asked, _kind: Kind) -> Found:
    """The event loop is never blocked for more than a second."""
    if asked.gap > MOST_GAP:
        yield ", ".join(sorted({*_all_names(asked)})), f"the event loop stood {asked.gap:.2f} s"


def steps_are_short(asked: Asked, _kind: Kind) -> Found:
    """No step of the scheduler works a tenth of a second longer than without processors."""
    if asked.step > MOST_STEP:
        yield ", ".join(sorted({*_all_names(asked)})), f"a step worked {asked.step * 1e3:.0f} ms"


def _all_names(asked: Asked) -> Iterator[str]:
    for sent in asked.sent:
        yield from names_of(sent)
