"""One decoding step over the rows of a batch: who acts, what they want, and one application.

Rows that cannot act yet sleep. The clock counts the tokens that a request can have got at most:
one for each ordinary step, and as many as a draft has nodes for each verify step. So a row that
sleeps for ``n`` tokens is never woken late, whatever the batch looks like meanwhile; woken early,
it looks and goes back to sleep. There is one clock for the process: a stock server hands rows from
one processor instance, and so one batch, to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.faults import as_fault, from_signal
from sglang_lp._engine.plan import Cells, Plan, place, place_standing, pool
from sglang_lp._engine.reading import Logits
from sglang_lp._engine.recording import NEVER, Recording
from sglang_lp.errors import ProcessorFault, SglangLpError, Unsupported
from sglang_lp.request import History

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.drafts import Drafts
    from sglang_lp._engine.ids import Ids
    from sglang_lp._engine.rows import Row

__all__ = ["Batch", "ask_again", "check_computed"]

#: Looking up a member of an enumeration takes 0.1 µs in Python 3.11, and this is per row.
_NONE = History.NONE

_now = 1


class Batch:
    """Runs the processors of whatever rows it is given, step by step.

    One for a scheduler process; a processor that is called directly keeps its own.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._unchanged: tuple[Plan | None, list[int]] = (None, [])

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
    ) -> None:
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
        """
        global _now  # noqa: PLW0603 - the clock of the process, see above
        step = _Step(logits, rows, custom_param_list, masked, width, _now)
        reach = _now + width - 1
        _now += width
        for index, row in enumerate(rows):
            if row is None or (row.wake > reach and (row.wake >= NEVER or not repeated)):
                continue
            if repeated and row.needs is not _NONE:
                _refuse_repeated(row)
            elif width > 1 and row.needs is not _NONE and drafts is not None:
                step.drafts = step.drafts or drafts()
                _visit_drafts(step, index, row, step.drafts)
            else:
                _visit(step, index, row)
        for indices in step.dense.values():
            _call(step, indices)
        self._apply(step)

    @staticmethod
    def may_act(rows: Sequence[Row | None], width: int) -> bool:
        """Tell whether the next step will read what was drafted for these rows.

        Args:
            rows: As for :meth:`step`.
            width: As for :meth:`step`.
        """
        reach = _now + width - 1
        return any(row is not None and row.wake <= reach and row.needs is not _NONE for row in rows)

    def _apply(self, step: _Step) -> None:
        logits = step.logits
        pool(logits, step.pools)
        acting = _planned(step) if step.acting else None
        if acting is not None:
            _end_conflicts(step, acting)  # first: what such a row holds for good goes, too
        standing, guarded = self._standing(step)
        if standing is None and acting is None and not step.pools:
            return
        guarded = [*{*guarded, *step.rewritten}]
        before = logits[guarded] if guarded else None
        for plan in (standing, acting):
            if plan is not None:
                plan.apply(logits)
        if standing is not None:
            _end_conflicts(step, standing)
        if before is not None:
            _undo_dead(step, guarded, before)

    def _standing(self, step: _Step) -> tuple[Plan | None, list[int]]:
        """Return what changes only when the batch does.

        Returns:
            The edits that hold at every step; and the rows in which edits and what SGLang masks
            could together leave no token.
        """
        logits, rows, masked, width = step.logits, step.rows, step.masked, step.width
        serials = [row and row.serial for row in rows]
        key = (serials, width, logits.shape, logits.stride(), logits.dtype, logits.device, *masked)
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
            self._key = key
            self._unchanged = Plan(cells, logits) if some else None, guarded
        return self._unchanged


class _Step:
    """What one step works on, and what comes of it.

    Attributes:
        now: Reading of the clock.
        drafts: The drafted tokens, once asked for.
        acting: Rows of the logits with the edits of this step.
        pools: As :func:`sglang_lp._engine.plan.pool` takes them.
        dense: Rows of processors that compute on whole rows, by their class.
        read: The logits, for processors that read them.
        rewritten: Rows whose logits a processor changed itself. Its edits may take what it left.
        nodes: For rows of drafted tokens, how many tokens their history has, and which of these
            are drafts.
    """

    __slots__ = (
        "acting",
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
        self.read = Logits(logits)
        self.rows = rows
        self.custom_params = custom_params
        self.masked = masked
        self.width = width
        self.now = now
        self.vocab_size: int = logits.shape[1]
        self.drafts: Drafts | None = None
        self.acting: list[tuple[int, Recording]] = []
        self.pools: list[list[tuple[int, Ids | list[int], int]]] = []
        self.dense: dict[type, list[int]] = {}
        self.rewritten: list[int] = []
        self.nodes: dict[int, tuple[int, list[int]]] = {}


def _visit(step: _Step, index: int, row: Row) -> None:
    """Let one request's processor look at its step."""
    try:
        if not row.look():
            return
        if row.dense:
            step.dense.setdefault(row.processor.kind, []).append(index)
        elif row.needs is _NONE:
            recording = row.ask(step.vocab_size)
            recording.act()
            row.settle(recording)
        else:
            recording = _ask(step, index, row)
            _schedule(step, row, recording)
            if recording.reason is not None:
                row.host.finish(recording.reason)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        row.end(_as_fault(row, error))


def _ask(step: _Step, index: int, row: Row, *, drafted: bool = False) -> Recording:
    """Ask for the edits of a row of the logits, and take them down.

    Along a draft even those that hold at later steps are edits of this step.
    """
    request = row.request
    request.lent = step.read, index
    try:
        recording = row.ask(step.vocab_size)
        copied = request.copied
    finally:
        request.lent = request.copied = request.read = None
    if copied is not None:
        _write_back(step, [index], copied[None])
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
    if not recording.is_empty or copied is not None:
        forced = recording.forced is not None
        if drafted:
            position, path = step.nodes[index]
            row.acts.note_drafted(position, path, forced=forced)
        else:
            row.acts.note(request.position, forced=forced)
    if recording.pooled:
        _take_pools(step, index, row, recording)
    if not recording.is_empty:
        step.acting.append((index, recording))
    return recording


def ask_again(row: Row, vocab_size: int) -> str | None:
    """Ask for the edits of a first token that was sampled elsewhere, and take them down.

    Args:
        row: Of a request that has just arrived: its processor was told of no token yet. It starts
            again, because asking may have changed its state.
        vocab_size: Number of logits in a row of the model.

    Returns:
        Why the request ends with that token, or ``None`` if it goes on. Unknown, and so ``None``,
        where the processor asks for the logits, which are elsewhere.
    """
    if row.dense:
        row.acts.note(0, forced=False)
        return None
    try:
        if not row.started:
            row.arrive()
        recording = row.ask(vocab_size)
        recording.act()
    except BaseException as error:
        if from_signal(error):
            raise
        return None  # where it was sampled, it did not fail
    finally:
        row.restart()
    if not recording.is_empty:
        row.acts.note(0, forced=recording.forced is not None)
    return recording.reason


def _take_pools(step: _Step, index: int, row: Row, recording: Recording) -> None:
    for turn, (ids, into) in enumerate(recording.pooled):
        if turn == len(step.pools):
            step.pools.append([])
        step.pools[turn].append((index, ids, into))
    recording.pooled = ()
    if row.standing is not None or recording.standing is not None or not recording.is_empty:
        step.rewritten.append(index)  # together with its other edits it may leave no token


def _schedule(step: _Step, row: Row, recording: Recording) -> None:
    """Keep what holds from now on, and let the row sleep as long as its processor promised."""
    if recording.standing is not None:
        row.keep(recording.standing)
    if recording.wake is None:
        row.wake = 0
    elif recording.wake >= NEVER:
        row.wake = NEVER
    else:
        row.wake = step.now + recording.wake - row.request.position


def _visit_drafts(step: _Step, index: int, row: Row, drafts: Drafts) -> None:
    """Let one request's processor look at every node of its draft."""
    request = row.request
    first = index * step.width
    try:
        if not row.look():
            return
        root = _ask(step, first, row)
        _schedule(step, row, root)
        if root.reason is not None:
            row.host.finish_at(request.position, (), root.reason)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        row.end(_as_fault(row, error))
        return
    wake = 0 if root.wake is None else root.wake
    if root.reason is not None or request.position + step.width <= wake:
        return
    state, position, length = request.state, request.position, len(row.tokens)
    try:
        _Walk(step, index, row, drafts, wake).below(0, state, owned=False)
    finally:
        request.state, request.position = state, position
        del row.tokens[length:]


class _Walk:
    """Goes through a draft, branch by branch, with states that are thrown away."""

    def __init__(self, step: _Step, index: int, row: Row, drafts: Drafts, wake: int) -> None:
        self._step = step
        self._row = row
        self._first = index * step.width
        self._token_ids = drafts.token_ids[index]
        self._first_child = drafts.first_child[index]
        self._next_sibling = drafts.next_sibling[index]
        self._root = row.request.position
        self._wake = wake
        self._path: list[int] = []

    def below(self, node: int, state: Any, *, owned: bool) -> None:
        """Visit the children of a node.

        Args:
            node: The node.
            state: The processor's state there.
            owned: Whether the state is a fork that nobody else needs.
        """
        row, path = self._row, self._path
        request, tokens = row.request, row.tokens
        length = len(tokens)
        position = self._root + len(path) + 1
        if position >= row.host.limit:
            return
        child = self._first_child[node]
        while child >= 0:
            sibling = self._next_sibling[child]
            token_id = self._token_ids[child]
            path.append(token_id)
            request.state, request.position = state, position
            try:
                if not owned or sibling >= 0:
                    request.state = row.processor.fork(request)
                tokens.append(token_id)
                row.processor.advance(request, [token_id])
                goes_on = position < self._wake or self._look(self._first + child, position)
            except BaseException as error:  # noqa: BLE001 - it counts if the draft is accepted
                row.host.end_at(position, [*path], _as_fault(row, error))
                goes_on = False
            if goes_on:
                self.below(child, request.state, owned=True)
            path.pop()
            del tokens[length:]
            child = sibling

    def _look(self, index: int, position: int) -> bool:
        """Ask for the edits of a node; tell whether its children are worth a look."""
        self._step.nodes[index] = position, [*self._path]
        recording = _ask(self._step, index, self._row, drafted=True)
        if recording.reason is not None:
            self._row.host.finish_at(position, [*self._path], recording.reason)
            return False
        return True


def _call(step: _Step, indices: list[int]) -> None:
    """Call a processor that computes on whole rows, for all its rows at once."""
    group = [row for row in (step.rows[index] for index in indices) if row is not None]
    try:
        result = group[0].processor.compute(
            step.logits[indices],
            [row.request for row in group],
            [step.custom_params[index] for index in indices],
        )
        check_computed(result, step.logits, (len(indices), step.vocab_size))
        _write_back(step, indices, result)
        for row in group:
            row.acts.note(row.request.position, forced=False)
    except BaseException as error:  # noqa: BLE001 - see _visit
        if len(group) == 1:
            group[0].end(_as_fault(group[0], error))
        else:  # find out whose fault it was
            for index in indices:
                _call(step, [index])


def check_computed(result: object, logits: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Check what a processor that computes on whole rows returned.

    Args:
        result: That.
        logits: What it computed from, for its device.
        shape: Expected.

    Raises:
        ProcessorFault: Not a tensor of floats of this shape on the same device.
    """
    import torch

    if not isinstance(result, torch.Tensor):
        came = type(result).__name__
    elif tuple(result.shape) != shape or not result.is_floating_point():
        came = f"{result.dtype} of shape {tuple(result.shape)}"
    elif result.device != logits.device:
        came = f"one on {result.device}"
    else:
        return
    raise ProcessorFault(
        f"it returned {came}, expected a tensor of floats of shape {shape} on {logits.device}"
    )


def _write_back(step: _Step, indices: list[int], result: torch.Tensor) -> None:
    """Put computed rows back; what a grammar masked stays masked.

    Raises:
        ProcessorFault: A row has no finite logit, or NaN or +inf that the model did not write
            itself. None is put back then.
    """
    logits = step.logits
    result = result.to(logits.dtype)  # first: a number may be finite in one type only
    guarded = [i for i, index in enumerate(indices) if index in step.masked]
    if guarded:
        shut = logits[[indices[i] for i in guarded]] == -math.inf
        result = result.clone()
        result[guarded] = result[guarded].masked_fill(shut, -math.inf)
    highest = result.amax(-1)
    if not bool(highest.isfinite().all()) and any(_spoiled(highest, logits[indices])):
        raise ProcessorFault("it left no finite logit, or NaN or +inf among them")
    logits[indices] = result


def _planned(step: _Step) -> Plan:
    """Put the edits of this step together."""
    cells = Cells(step.logits)
    for index, recording in step.acting:
        row = step.rows[index // step.width]
        standing = None if row is None else row.standing
        kept = place(cells, index, recording, standing, keep_masked=index in step.masked)
        if row is not None:
            row.acting = kept
    return Plan(cells, step.logits)


def _end_conflicts(step: _Step, plan: Plan) -> None:
    for index, why in plan.conflicts.items():
        _end_conflict(step, index, why)


def _undo_dead(step: _Step, indices: list[int], before: torch.Tensor) -> None:
    """Restore rows in which edits and what is masked already together leave no token."""
    highest = step.logits[indices].amax(-1)
    if bool(highest.isfinite().all()):
        return
    for i, (index, dead) in enumerate(zip(indices, _spoiled(highest, before), strict=True)):
        if dead:
            step.logits[index] = before[i]
            _end_conflict(
                step,
                index,
                "what its processors wrote into the logits, its grammar, min_new_tokens or "
                "logit_bias allows none of those left",
            )


def _spoiled(highest: torch.Tensor, before: torch.Tensor) -> list[bool]:
    """Tell which rows lost their last token, or their finite logits, since ``before``.

    A row that the model itself left without is not judged, whoever shares its batch.

    Args:
        highest: Shape ``(rows,)``: the highest logit of each row, NaN if there is one.
        before: Shape ``(rows, vocab)``: the rows as they were.
    """
    was = before.amax(-1)
    empty = (highest == -math.inf) & (was != -math.inf)
    return (empty | (~highest.isfinite() & was.isfinite())).tolist()


def _end_conflict(step: _Step, index: int, why: str) -> None:
    row = step.rows[index // step.width]
    if row is None:
        return
    fault = ProcessorFault(f"no token is left: {why}")
    if index in step.nodes:
        position, drafted = step.nodes[index]
        row.host.end_at(position, drafted, _as_fault(row, fault, position))
    else:
        row.end(_as_fault(row, fault))


def _refuse_repeated(row: Row) -> None:
    """Refuse rows of drafted tokens, whose histories nobody can see."""
    row.end(
        Unsupported(
            f"{row.name} needs the history of its request, which speculative "
            "decoding hides: use a server without it"
        )
    )


def _as_fault(row: Row, error: BaseException, position: int | None = None) -> SglangLpError:
    """Name the processor and the place."""
    at = row.request.position if position is None else position
    return as_fault(row.name, f"at token {at}", error)
