"""One decoding step: its inputs, the edits that rows declare, and how one row is asked.

The batch makes a step, asks its rows, and applies their edits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.answers import Answers, PendingAnswer
from sglang_lp._engine.apply.device import device_of
from sglang_lp._engine.apply.reading import Logits

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row
    from sglang_lp._engine.turns.turn import Whole
    from sglang_lp._engine.turns.turn_list import States
    from sglang_lp.edits.ids import Ids
    from sglang_lp.edits.recording import Recording
    from sglang_lp.errors import SglangLpError
    from sglang_lp.forms.out import Out


class Step:
    """The inputs of one step, and what its rows declared. Indices are rows of the logits.

    Attributes:
        logits: As for :meth:`~sglang_lp._engine.batch.Batch.step`, like ``rows``,
            ``custom_params``, ``grammar_rows`` and ``width``.
        now: Reading of the clock.
        drafts: The drafted tokens, once a row needed them.
        edits: Step edits by index.
        formed: Edits of rows that run by forms, or ``None``.
        answers: The device's answers to questions of these edits.
        pools: Pools of the step, as :func:`sglang_lp._engine.apply.pools.pool` takes them.
        copied: Indices of rows that a processor changed through ``request.logits``, and the
            changed copies.
        dense: For each row that is computed whole, the turns that compute it.
        read: The logits, for processors that read them.
        rewritten: Rows whose logits a processor changed itself, so that its edits could leave no
            finite logit.
        nodes: For rows of drafted tokens, the number of tokens of their history, and the drafted
            ones among these.
        apart: Requests whose phases may open or close within their drafts.
        states: What the processors knew at each drafted row that is computed whole.
    """

    __slots__ = (
        "answers",
        "apart",
        "copied",
        "custom_params",
        "dense",
        "drafts",
        "edits",
        "formed",
        "grammar_rows",
        "logits",
        "nodes",
        "now",
        "pools",
        "read",
        "rewritten",
        "rows",
        "states",
        "vocab_size",
        "width",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of Batch.step
        self,
        logits: torch.Tensor,
        rows: Sequence[Row | None],
        custom_params: Sequence[Any],
        grammar_rows: Sequence[int],
        width: int,
        now: int,
    ) -> None:
        self.logits = logits
        self.read_anew()
        self.rows = rows
        self.custom_params = custom_params
        self.grammar_rows = grammar_rows
        self.width = width
        self.now = now
        self.vocab_size = self.read.vocab_size
        self.drafts: Drafts | None = None
        self.edits: dict[int, Recording] = {}
        self.formed: Out | None = None
        self.answers = Answers()
        self.pools: list[list[tuple[int, Ids | list[int], int]]] = []
        self.dense: dict[int, Sequence[Whole]] = {}
        self.copied: list[tuple[int, torch.Tensor]] = []
        self.rewritten: list[int] = []
        self.nodes: dict[int, tuple[int, list[int]]] = {}
        self.apart: set[int] = set()
        self.states: dict[int, States] = {}

    def only_allowed(self, index: int) -> Ids | Sequence[int] | None:
        """Return the tokens that a step leaves to a row of the logits, once it was asked.

        ``None`` if the step does not just allow some tokens, or if persistent edits or the host's
        own masks change the row as well. A row of ``None`` has no tokens.
        """
        row, recording = self.rows[index], self.edits.get(index)
        if row is None:
            return ()
        if recording is None or row.persistent is not None or row.host.restricted:
            return None
        return None if index in self.rewritten else recording.only_allowed

    def leave(self, indices: Iterable[int]) -> None:
        """Leave the edits of some rows of the logits to the caller."""
        for index in indices:
            self.edits.pop(index, None)

    def read_anew(self) -> None:
        """Forget what was read of the logits, which have changed."""
        self.read = Logits(self.logits, at_once=not device_of(self.logits).ROW_BY_ROW)


def ask(
    step: Step, index: int, row: Row, *, drafted: bool = False, apart: bool = False
) -> Recording:
    """Ask for the edits of a row of the logits, and add them to the step.

    Args:
        step: The step.
        index: The row of the logits.
        row: The request's row.
        drafted: Whether it is a node of a draft, below the root.
        apart: As for :meth:`Row.ask`.
    """
    reading = row.reading
    reading.open(step.read, index)
    try:
        if drafted:
            recording = row.ask_drafted(step.vocab_size, apart=apart)
        else:
            recording = row.ask(step.vocab_size, step.now, step.width, apart=apart)
        copied = reading.copied
    finally:
        reading.close()
    row.is_scaled = recording.factor is not None
    if copied is not None:
        step.copied.append((index, copied))
        step.rewritten.append(index)
    is_empty = recording.is_empty
    if is_empty and copied is None:
        return recording
    _log(step, index, row, recording, drafted=drafted)
    if recording.pooled:
        _add_pools(step, index, row, recording)
    if not is_empty:
        step.edits[index] = recording
    return recording


def _log(step: Step, index: int, row: Row, recording: Recording, *, drafted: bool) -> None:
    """Log the edits of a row."""
    forced: bool | PendingAnswer
    if recording.conditional:
        forced = PendingAnswer(step.answers, index, is_edited=recording.edits_else)
    else:
        forced = recording.leaves_one
    if drafted:
        position, path = step.nodes[index]
        row.edit_log.add_drafted(position, path, forced=forced)
    else:
        row.recorder.add(row.position, forced=forced)


def _add_pools(step: Step, index: int, row: Row, recording: Recording) -> None:
    """Move the pools of a row to the turns of the step."""
    for turn, (ids, into) in enumerate(recording.pooled):
        if turn == len(step.pools):
            step.pools.append([])
        step.pools[turn].append((index, ids, into))
    recording.pooled = ()
    if row.persistent is not None or not recording.is_empty:
        step.rewritten.append(index)  # together with its other edits it may leave no token


def end(step: Step, index: int, row: Row, error: SglangLpError) -> None:
    """End the request of a row of the logits; along a draft, only if the draft is accepted."""
    if index in step.nodes:
        row.host.end_at(*step.nodes[index], error)
    else:
        row.end(error)
