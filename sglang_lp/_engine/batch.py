"""One decoding step over the rows of a batch: who acts, what they want, and one application.

Rows that cannot act yet sleep. The clock counts the tokens that a request can have got at most:
one for each ordinary step, and as many as a draft has nodes for each verify step. So a row that
sleeps for ``n`` tokens is never woken late, whatever the batch looks like meanwhile; woken early,
it looks and goes back to sleep. There is one clock for the process: a stock server hands rows from
one processor instance, and so one batch, to another.

While all rows of a batch sleep, so does the batch: a step is one comparison, and the edits that
hold, until the first row wakes, or anything happens to any row of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.device import index_on
from sglang_lp._engine.apply.placing import Cells, place, place_standing
from sglang_lp._engine.apply.plan import Plan
from sglang_lp._engine.apply.pools import pool
from sglang_lp._engine.apply.raw import take_raw
from sglang_lp._engine.apply.reading import Logits
from sglang_lp._engine.apply.whole_rows import compute, spoiled, write_back
from sglang_lp._engine.history.clock import clock
from sglang_lp._engine.history.drafts import edit_computed, visit_drafts
from sglang_lp._engine.history.row import rows_of
from sglang_lp._engine.step import Step, ask, end, schedule
from sglang_lp.edits import NEVER
from sglang_lp.errors import ProcessorFault, Unsupported
from sglang_lp.request import History

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.raw import RawRows
    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row

__all__ = ["Batch"]

#: Looking up a member of an enumeration takes 0.1 µs in Python 3.11, and this is per row.
_NONE = History.NONE


class Batch:
    """Runs the processors of whatever rows it is given, step by step.

    One for a scheduler process; a processor that is called directly keeps its own.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._layout: tuple[object, ...] = ()
        self._unchanged: tuple[Plan | None, list[int]] = (None, [])
        #: The batch that was asked for last, with its length: SGLang adds to such lists.
        self._params: Sequence[Any] = ()
        self._length = 0
        #: Reading of the clock before which none of its rows acts, as of so many changes.
        self._until = 0
        self._changes = 0

    def rests(
        self,
        logits: torch.Tensor,
        custom_param_list: Sequence[Any],
        width: int,
        *,
        masked: bool = False,
    ) -> bool:
        """Do the whole of a step in which nobody acts, if that is known: make the edits that hold.

        Call :meth:`step` if it is not, with the same list.

        Args:
            logits: As for :meth:`step`.
            custom_param_list: For each request SGLang's ``custom_params``. Known by its identity
                and its length: nothing in it is replaced.
            width: As for :meth:`step`.
            masked: Whether a grammar masks any row.
        """
        if self._sleeps(custom_param_list, width):
            standing, _ = self._unchanged
            if standing is None:
                clock.now += width
                return True
            if not masked and self._layout == _layout(logits, width):
                clock.now += width
                standing.apply(logits)
                return True
        self._params, self._length, self._until = custom_param_list, len(custom_param_list), 0
        return False

    def _sleeps(self, custom_param_list: Sequence[Any], width: int) -> bool:
        return (
            clock.now + width <= self._until
            and custom_param_list is self._params
            and len(custom_param_list) == self._length
            and clock.changes == self._changes
        )

    def step(  # noqa: PLR0913 - a step has this many parts
        self,
        logits: torch.Tensor,
        rows: Sequence[Row | None],
        custom_param_list: Sequence[Any],
        masked: Sequence[int] = (),
        *,
        repeated: bool = False,
        drafts: Callable[[], Drafts] | None = None,
        width: int = 1,
        temperatures: torch.Tensor | None = None,
    ) -> RawRows | None:
        """Let every processor edit its rows, in place.

        Args:
            logits: Shape ``(len(rows) * width, vocab)``, any float dtype. Request ``i`` has the
                rows from ``i * width`` on.
            rows: The requests, ``None`` for one without a processor.
            custom_param_list: For each request SGLang's ``custom_params``, for processors that
                override ``__call__``.
            masked: Indices of rows of ``logits`` that a grammar has masked already.
            repeated: Whether ``rows`` names a request several times in a row, for drafted tokens
                that cannot be seen. Only processors without history can serve those.
            drafts: Returns the drafted tokens; called at most once, and only if a row is awake.
            width: How many tokens a request can get in this step: the nodes of its draft.
            temperatures: What logits are divided by for logprobs, shape ``(len(rows), 1)``;
                ``None`` for 1.

        Returns:
            What the model says in edited rows, if a request with a processor asks for it.
        """
        step = Step(logits, rows, custom_param_list, masked, width, clock.now)
        reach = clock.now + width - 1
        clock.now += width
        sleeps = True
        for index, row in enumerate(rows):
            if row is None:
                continue
            wake = row.wake
            if wake > reach and (wake >= NEVER or not repeated):
                continue
            sleeps = False
            if repeated and row.needs is not _NONE:
                _refuse_repeated(row)
            elif width > 1 and (row.needs is not _NONE or row.dense) and drafts is not None:
                step.drafts = step.drafts or drafts()
                visit_drafts(step, index, row, step.drafts)
            else:
                _visit(step, index, row)
        raw = take_raw(step, temperatures)
        if step.dense:
            compute(step)
            step.read = Logits(logits, at_once=not logits.is_cpu)  # what was read is stale
            for index in step.dense:
                _edit_computed(step, index)
        if step.copied:
            _put_back(step, step.copied)
        self._apply(step)
        standing, guarded = self._unchanged
        if (
            sleeps
            and custom_param_list is self._params
            and (standing is None or (raw is None and not guarded and not masked))
        ):
            self._until = min((row.wake for row in rows if row is not None), default=NEVER)
            self._changes = clock.changes
        return None if raw is None else raw.compared_with(logits)

    def may_act(self, custom_param_list: Sequence[Any], width: int) -> bool:
        """Tell whether the next step will read what was drafted for these requests.

        Args:
            custom_param_list: As for :meth:`rests`.
            width: As for :meth:`step`.
        """
        if self._sleeps(custom_param_list, width):
            return False
        reach = clock.now + width - 1
        return any(
            row is not None and row.wake <= reach and row.needs is not _NONE
            for row in rows_of(custom_param_list)
        )

    def _apply(self, step: Step) -> None:
        logits = step.logits
        acting = _planned(step) if step.acting else None
        if acting is not None:
            acting.decide(step.read, step.answers)
        pool(logits, step.pools)
        if acting is not None:
            _end_conflicts(step, acting)  # first: what such a row holds for good goes, too
        standing, guarded = self._standing(step)
        if standing is None and acting is None and not step.pools:
            return
        guarded = [*{*guarded, *step.rewritten}]
        rows = index_on(logits.device, guarded) if guarded else None
        before = None if rows is None else logits.index_select(0, rows)
        for plan in (standing, acting):
            if plan is not None:
                plan.apply(logits)
        if standing is not None:
            _end_conflicts(step, standing)
        if before is not None and rows is not None:
            _undo_dead(step, guarded, rows, before)

    def _standing(self, step: Step) -> tuple[Plan | None, list[int]]:
        """Return what changes only when the batch does.

        Returns:
            The edits that hold at every step; and the rows in which edits and what SGLang masks
            could together leave no token.
        """
        logits, rows, masked, width = step.logits, step.rows, step.masked, step.width
        layout = _layout(logits, width)
        key = ([row and row.serial for row in rows], *layout, *masked)
        if key != self._key:
            cells, guarded, some = Cells(logits), [], False
            for request, row in enumerate(rows):
                if row is None:
                    continue
                for index in range(request * width, (request + 1) * width):
                    if row.host.restricted or index in masked:
                        guarded.append(index)
                    if row.standing is not None:
                        some = True
                        place_standing(cells, index, row.standing, keep_masked=index in masked)
            self._key, self._layout = key, layout
            self._unchanged = Plan(cells, logits) if some else None, guarded
        return self._unchanged


def _layout(logits: torch.Tensor, width: int) -> tuple[object, ...]:
    """Return what a plan depends on besides the requests of its batch."""
    return width, logits.shape, logits.stride(), logits.dtype, logits.device


def _visit(step: Step, index: int, row: Row) -> None:
    """Let one request's processor look at its step."""
    try:
        if not row.look():
            return
        if row.dense:
            step.dense[index] = row.processor.wholes(row.request, step.custom_params[index])
        elif row.needs is _NONE:
            recording = row.ask(step.vocab_size)
            recording.act()
            row.settle(recording)
        else:
            _edit(step, index, row)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        row.end(row.fault(error))


def _edit(step: Step, index: int, row: Row) -> None:
    """Take down what a row's processor wants, until when, and whether the request ends."""
    recording = ask(step, index, row)
    schedule(step, row, recording)
    if recording.end is not None:
        row.host.finish(recording.end)


def _edit_computed(step: Step, index: int) -> None:
    """Let a processor edit a row after others computed it."""
    row = step.rows[index // step.width]
    if row is None:
        return
    position, path = step.nodes.get(index, (row.request.position, None))
    if path is None:
        row.acts.note(position, forced=False)
    else:
        row.acts.note_drafted(position, path, forced=False)
    if not row.processor.edits:
        return
    step.rewritten.append(index)
    try:
        if step.width > 1:
            edit_computed(step, index, row)
        else:
            _edit(step, index, row)
    except BaseException as error:  # noqa: BLE001 - as in _visit
        end(step, index, row, row.fault(error, position))


def _put_back(step: Step, copied: Sequence[tuple[int, torch.Tensor]]) -> None:
    """Put rows back that processors changed themselves, with one wait for all of them."""
    import torch

    indices = [index for index, _ in copied]
    try:
        rows = index_on(step.logits.device, indices)
        write_back(step, indices, rows, torch.stack([row for _, row in copied]))
    except Exception as error:  # noqa: BLE001 - a processor may leave anything in its row
        if len(copied) == 1:
            _end(step, indices[0], error)
            step.acting = [(index, own) for index, own in step.acting if index != indices[0]]
        else:  # find out whose fault it was
            for one in copied:
                _put_back(step, [one])


def _planned(step: Step) -> Plan:
    """Put the edits of this step together."""
    cells = Cells(step.logits)
    for index, recording in step.acting:
        row = step.rows[index // step.width]
        standing = None if row is None else row.standing
        kept = place(cells, index, recording, standing, keep_masked=index in step.masked)
        if row is not None:
            row.acting = kept
    return Plan(cells, step.logits)


def _end_conflicts(step: Step, plan: Plan) -> None:
    for index, why in plan.conflicts.items():
        _end_conflict(step, index, why)


def _undo_dead(step: Step, indices: list[int], rows: torch.Tensor, before: torch.Tensor) -> None:
    """Restore rows in which edits and what is masked already together leave no token."""
    highest = step.logits.index_select(0, rows).amax(-1)
    if bool(highest.isfinite().all()):
        return
    for i, (index, dead) in enumerate(zip(indices, spoiled(highest, before), strict=True)):
        if dead:
            step.logits[index] = before[i]
            _end_conflict(
                step,
                index,
                "the logits, the grammar, min_new_tokens or logit_bias mask every token that its "
                "processors leave",
            )


def _end_conflict(step: Step, index: int, why: str) -> None:
    _end(step, index, ProcessorFault(f"no token is left: {why}"))


def _end(step: Step, index: int, fault: Exception) -> None:
    """End the request of a row of the logits, along a draft only if that is accepted."""
    row = step.rows[index // step.width]
    if row is None:
        return
    position, _ = step.nodes.get(index, (None, None))
    end(step, index, row, row.fault(fault, position))


def _refuse_repeated(row: Row) -> None:
    """Refuse rows of drafted tokens, whose histories nobody can see."""
    row.end(
        Unsupported(
            f"{row.name} needs the history of its request, which speculative "
            "decoding hides: use a server without it"
        )
    )
