"""The states of a row; :class:`~sglang_lp._engine.history.row.Row` has the transitions."""

from __future__ import annotations

from enum import Enum


class RowState(Enum):
    """Whether the processor of a row is started and fed.

    Attributes:
        UNSTARTED: The processor has no state, or one of another history: the next step starts it.
        WAITING: As UNSTARTED, and ``Arrivals`` starts it once there is time to read its prompt.
        RESUMING: Started, but some of the ``resumed`` tokens are not fed.
        ASKED: Started, and the edits of the first step are recorded.
        RUNNING: Started and fed.
        ENDED: The request ends with an error; the row takes part in no further step.
    """

    UNSTARTED = "unstarted"
    WAITING = "waiting for its prompt to be read"
    RESUMING = "resuming"
    ASKED = "asked early"
    RUNNING = "running"
    ENDED = "ended"
