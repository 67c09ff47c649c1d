"""What one decoding step works on, and asking one row of it for its edits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.answers import Answers, Told
from sglang_lp._engine.apply.deciding import decide
from sglang_lp._engine.apply.reading import Logits
from sglang_lp.edits import NEVER

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row
    from sglang_lp.edits.ids import Ids
    from sglang_lp.edits.recording import Recording
    from sglang_lp.errors import SglangLpError
    from sglang_lp.processor import Whole
    from sglang_lp.request import Request

__all__ = ["Step", "ask", "end", "schedule"]


class Step:
    """What one step works on, and what comes of it.

    Attributes:
        now: Reading of the clock.
        drafts: The drafted tokens, once asked for.
        acting: Rows of the logits with the edits of this step.
        answers: What the device says of these rows.
        pools: As :func:`sglang_lp._engine.apply.pools.pool` takes them.
        copied: Rows of the logits that a processor changed itself, as it left them.
        dense: For each row of the logits that is computed whole, what computes it.
        read: The logits, for processors that read them.
        rewritten: Rows whose logits a processor changed itself. Its edits may take what it left.
        nodes: For rows of drafted tokens, how many tokens their history has, and which of these
            are drafts.
        views: The request as it was at each of those rows that is computed whole.
    """

    __slots__ = (
        "acting",
        "answers",
        "copied",
        "custom_params",
        "dense",
        "drafts",
        "logits",
        "masked",
        "nodes",
        "now",
        "pools",
        "read",
        "rewritten",
        "rows",
        "views",
        "vocab_size",
        "width",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of Batch.step
        self,
        logits: torch.Tensor,
        rows: Sequence[Row | None],
        custom_params: Sequence[Any],
        masked: Sequence[int],
        width: int,
        now: int,
    ) -> None:
        self.logits = logits
        self.read = Logits(logits, at_once=not logits.is_cpu)
        self.rows = rows
        self.custom_params = custom_params
        self.masked = masked
        self.width = width
        self.now = now
        self.vocab_size = self.read.vocab_size
        self.drafts: Drafts | None = None
        self.acting: list[tuple[int, Recording]] = []
        self.answers = Answers()
        self.pools: list[list[tuple[int, Ids | list[int], int]]] = []
        self.dense: dict[int, Sequence[Whole]] = {}
        self.copied: list[tuple[int, torch.Tensor]] = []
        self.rewritten: list[int] = []
        self.nodes: dict[int, tuple[int, list[int]]] = {}
        self.views: dict[int, Request] = {}


def ask(step: Step, index: int, row: Row, *, drafted: bool = False) -> Recording:
    """Ask for the edits of a row of the logits, and take them down.

    Along a draft even those that hold at later steps are edits of this step.
    """
    request = row.request
    recording, copied = _ask(step, index, row)
    if copied is not None:
        step.copied.append((index, copied))
        step.rewritten.append(index)
    if drafted:
        recording.act()
    elif recording.holds:
        # Not a part of a draft: every node of it asks for itself.
        if request.position + step.width <= (recording.wake or 0):
            row.hold(recording)
            return recording
        recording.wake = None
    if row.held is not None and not drafted:
        row.hold(None)
    is_empty = recording.is_empty
    if is_empty and copied is None:
        return recording
    _note(step, index, row, recording, drafted=drafted)
    if recording.pooled:
        _take_pools(step, index, row, recording)
    if not is_empty:
        step.acting.append((index, recording))
    return recording


def _ask(step: Step, index: int, row: Row) -> tuple[Recording, torch.Tensor | None]:
    """Lend a processor its row; return what it wants, and the copy of the row if it made one."""
    request = row.request
    request.lent, request.index = step.read, index
    try:
        recording = row.ask(step.vocab_size)
        if recording.conditional:
            decide(recording, row.standing, here=request.copied is not None)
        return recording, request.copied
    finally:
        if request.read is not None:
            request.read.is_over = True
        request.lent = request.copied = request.read = None


def _note(step: Step, index: int, row: Row, recording: Recording, *, drafted: bool) -> None:
    forced: bool | Told = recording.forced is not None
    if recording.conditional:
        forced = Told(step.answers, index, is_edited=recording.edits_else)
    if drafted:
        position, path = step.nodes[index]
        row.acts.note_drafted(position, path, forced=forced)
    else:
        row.acts.note(row.request.position, forced=forced)


def _take_pools(step: Step, index: int, row: Row, recording: Recording) -> None:
    for turn, (ids, into) in enumerate(recording.pooled):
        if turn == len(step.pools):
            step.pools.append([])
        step.pools[turn].append((index, ids, into))
    recording.pooled = ()
    if row.standing is not None or recording.standing is not None or not recording.is_empty:
        step.rewritten.append(index)  # together with its other edits it may leave no token


def schedule(step: Step, row: Row, recording: Recording) -> None:
    """Keep what holds from now on, and let the row sleep as long as its processor promised."""
    row.forces = recording.leaves_one
    if recording.standing is not None:
        row.keep(recording.standing)
    if recording.wake is None:
        row.wake = 0
    elif recording.wake >= NEVER:
        row.wake = NEVER
    else:
        row.wake = step.now + recording.wake - row.request.position


def end(step: Step, index: int, row: Row, error: SglangLpError) -> None:
    """End the request of a row of the logits, along a draft only if that is accepted."""
    if index in step.nodes:
        row.host.end_at(*step.nodes[index], error)
    else:
        row.end(error)
