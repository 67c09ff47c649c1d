"""The beams of one request: a row for each, their parents, and their edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, TypeAlias

from sglang_lp._engine.apply.answers import PendingAnswer
from sglang_lp._engine.apply.device import Copy
from sglang_lp._engine.history.edit_log import EditLog
from sglang_lp.request import History

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.row import Row
    from sglang_lp.server.scheduler.beams.beam_host import BeamHost

#: Whether a step forced the token of a beam; ``None`` if it did not edit the beam.
Edited: TypeAlias = bool | PendingAnswer | None


class LatestEdits:
    """The edits of one beam at the latest step; :class:`Tree` has those of the steps before."""

    __slots__ = ("_persists", "_step")

    def __init__(self) -> None:
        self._step: Edited = None
        self._persists: bool | None = None

    def add(self, position: int, *, forced: bool | PendingAnswer) -> None:  # noqa: ARG002 - the base's
        """Record the step edits."""
        self._step = forced

    def set_persistent(self, position: int, *, exist: bool, forced: bool) -> None:  # noqa: ARG002
        """Record the persistent edits."""
        self._persists = forced if exist else None

    def take(self) -> Edited:
        """Return the edits of this step, and forget the step edits."""
        step, self._step = self._step, None
        if self._persists is None:
            return step
        if isinstance(step, PendingAnswer) and not self._persists:
            return step._replace(is_edited=True)
        return self._persists or step is True


class Tree:
    """The beams of one request.

    Attributes:
        rows: The row of each beam, ``None`` for a dead one. Only the leader's before the first
            choice.
    """

    def __init__(self, row: Row, width: int) -> None:
        row.recorder = LatestEdits()
        self.rows: list[Row | None] = [row]
        self._width = width
        self._reads_tokens = row.needs is History.TOKENS
        self._resumed = row.resumed
        #: For each step the beams that it selected, as in :meth:`grow`.
        self._choices: list[Copy] = []
        self._followed = 0
        #: For each position the edits of each beam.
        self._edits: list[list[Edited]] = []
        #: Whether beams of one step were edited differently.
        self._differ = False

    @property
    def waits(self) -> bool:
        """Whether :meth:`follow` reads a choice from the device."""
        return self._reads_tokens and self._followed < len(self._choices)

    def grow(self, beams: torch.Tensor) -> None:
        """Add the beams that a step selected.

        Args:
            beams: Shape ``(3, beam_width)``, int64: for each beam its parent, its token, and 1 if
                it is alive.
        """
        self._choices.append(Copy(beams))

    def follow(self) -> None:
        """Let the rows follow the newest choice."""
        if not self._reads_tokens:
            if self._choices and len(self.rows) < self._width:
                # All beams are equally long, so their rows stay equal.
                self.rows = [row and _fork(row) for row in self.rows * self._width]
            return
        for choice in self._choices[self._followed :]:
            self._descend(_beams(choice))
        self._followed = len(self._choices)

    def _descend(self, beams: Sequence[tuple[int, int, int]]) -> None:
        """Replace the rows by the rows of the next beams.

        An only child takes over its parent's row. Siblings all get forks, because a state may be
        forked only while its original does not move on.
        """
        before = self.rows
        children = Counter(parent for parent, _, alive in beams if alive)
        self.rows = []
        for parent, token_id, alive in beams:
            row = before[parent] if alive else None
            if row is not None:
                if children[parent] > 1:
                    row = _fork(row)
                host: BeamHost = row.host  # type: ignore[assignment]
                host.output_ids.append(token_id)
            self.rows.append(row)

    def keep_edits(self, position: int) -> None:
        """Keep the edits of the step that samples a position."""
        edits = [None if row is None else row.recorder.take() for row in self.rows]  # type: ignore[attr-defined]
        del self._edits[position:]
        self._edits.append(edits)
        self._differ = self._differ or edits.count(edits[0]) < len(edits)

    def edit_logs(self, answers: Sequence[Sequence[int]]) -> list[EditLog]:
        """Return the edit log of each answer.

        Args:
            answers: The generated tokens of each answer, a path of this tree.
        """
        logs, places = [EditLog() for _ in answers], [0] * len(answers)
        for position, edits in enumerate(self._edits):
            going = [index for index, answer in enumerate(answers) if position < len(answer)]
            for index in going:
                self._log(logs[index], position, edits[places[index]])
            going = [index for index in going if position + 1 < len(answers[index])]
            if self._differ and going:
                children = _places(self._choices[position])
                for index in going:
                    places[index] = children[places[index], answers[index][position]]
        return logs

    def _log(self, log: EditLog, position: int, edited: Edited) -> None:
        if edited is None:
            return
        forced = bool(edited)
        if forced or not isinstance(edited, PendingAnswer) or edited.is_edited:
            log.add(self._resumed + position, forced=forced)


def _beams(choice: Copy) -> list[tuple[int, int, int]]:
    """Return parent, token and whether it is alive, of each selected beam. Waits for the device."""
    return [*zip(*choice.read(), strict=True)]


def _places(choice: Copy) -> dict[tuple[int, int], int]:
    """Return the place of each selected beam that is alive, by its parent and token."""
    return {
        (parent, token_id): place
        for place, (parent, token_id, alive) in enumerate(_beams(choice))
        if alive
    }


def _fork(row: Row) -> Row:
    """Return a row for another beam with the same tokens."""
    host: BeamHost = copy(row.host)  # type: ignore[assignment]
    host.output_ids = host.output_ids[:]
    try:
        return row.fork(host, host.output_ids)
    except BaseException as error:  # noqa: BLE001 - the class's own code
        row.end(row.fault(error))
        return row
