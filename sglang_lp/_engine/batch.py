"""A batch of rows: which rows are asked at a step, and how their edits are applied.

The scheduler's sampler calls it, and so does a processor that is called directly.

Rows that cannot act yet sleep. The clock counts the most tokens that a request can have got: one
for each ordinary step, and the number of nodes of a draft for each verify step. So a row that
sleeps for ``n`` tokens never wakes late, whatever the batch does meanwhile; if it wakes early, it
is asked and goes back to sleep. The process has one clock, because a stock server moves rows from
one processor instance to another, and so from one batch to another.

While all rows of a batch sleep, the batch sleeps: a step is one comparison and the persistent
edits, until the first row wakes or any row of the process changes. A row may also watch for the
tokens that open or close a phase: then a step compares the newest tokens of all rows at once with
the watched tokens, and does nothing else for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.apply.device import index_on
from sglang_lp._engine.apply.plan import Plan, apply_last
from sglang_lp._engine.apply.plan_builder import PlanBuilder
from sglang_lp._engine.apply.pools import pool
from sglang_lp._engine.apply.whole_rows import compute, write_back
from sglang_lp._engine.draft_walk import edit_computed, visit_drafts
from sglang_lp._engine.ending import (
    contradicts,
    end_at,
    end_conflicts,
    end_not_finite,
    fail_at,
    refuse_repeated,
)
from sglang_lp._engine.history.attached import rows_of
from sglang_lp._engine.history.clock import clock
from sglang_lp._engine.raw_rows import raw_rows
from sglang_lp._engine.step import Step, ask, end
from sglang_lp.edits import NEVER
from sglang_lp.request import History

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.raw import RawRows
    from sglang_lp._engine.forms.forms import Forms
    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row

#: Looked up once and not for each row: a member of an enumeration is a slow attribute.
_NONE = History.NONE
_NO: frozenset[int] = frozenset()


class Batch:
    """Runs the processors of the rows that it is given, step by step.

    A scheduler process has one; a processor that is called directly has its own.

    Args:
        before_edits: Called before the logits of a step are edited, with the logits, and with the
            step (``None`` if all rows sleep); not called in a step that edits nothing. It returns
            the rows of the logits whose step edits the caller applies itself.
        forms: Runs rows that have a form; ``None`` to ask every row.
    """

    def __init__(
        self,
        before_edits: Callable[[torch.Tensor, Step | None], Iterable[int]] | None = None,
        forms: Forms | None = None,
    ) -> None:
        self._before_edits = before_edits
        self.forms = forms
        #: The persistent edits and the rows to look at; both hold for the key and the layout.
        self._persistent = _Persistent(None, [], set())
        self._key: tuple[object, ...] = ()
        self._layout: tuple[object, ...] = ()
        #: The batch of the last step, with its length: SGLang appends to such lists.
        self._params: Sequence[Any] = ()
        self._length = 0
        #: Reading of the clock before which none of its rows wakes, at a version of the clock.
        self._until = 0
        self._version = 0
        #: Tokens that wake a row before ``_until``, and the generated tokens of rows that watch.
        self._watch: frozenset[int] = frozenset()
        self._watching: list[Sequence[int]] = []

    def step_asleep(
        self,
        logits: torch.Tensor,
        custom_param_list: Sequence[Any],
        width: int,
        *,
        has_grammar: bool = False,
        newest: Callable[[], Sequence[int]] | None = None,
    ) -> bool:
        """Run a step in which all rows sleep: apply the persistent edits, and advance the clock.

        Args:
            logits: As for :meth:`step`.
            custom_param_list: For each request SGLang's ``custom_params``. Compared by identity
                and length: SGLang replaces no item of such a list.
            width: As for :meth:`step`.
            has_grammar: Whether a grammar masks any row.
            newest: Returns the tokens that requests got and that are not in their ``output_ids``
                yet; may wait for the device. Without it, rows that watch for tokens do not sleep.

        Returns:
            Whether the step was run. If not, call :meth:`step` with the same list.
        """
        if self._is_asleep(custom_param_list, width) and self._is_quiet(width, newest):
            persistent = self._persistent.plan
            if persistent is None:
                clock.now += width
                return True
            if not has_grammar and self._layout == _layout(logits, width):
                clock.now += width
                if self._before_edits is not None:
                    self._before_edits(logits, None)
                persistent.apply(logits)
                apply_last(logits, [persistent])
                return True
        self._params, self._length, self._until = custom_param_list, len(custom_param_list), 0
        return False

    def skip(self, custom_param_list: Sequence[Any], width: int) -> bool:
        """Skip a step in which all rows sleep and no edit persists, and advance the clock.

        Args:
            custom_param_list: As for :meth:`step_asleep`.
            width: As for :meth:`step`.

        Returns:
            Whether the step was skipped. If so, it is over: call nothing else for it.
        """
        if (
            not self._is_asleep(custom_param_list, width)
            or self._watch
            or self._persistent.plan is not None
        ):
            return False
        clock.now += width
        return True

    def _is_asleep(self, custom_param_list: Sequence[Any], width: int) -> bool:
        return (
            clock.now + width <= self._until
            and custom_param_list is self._params
            and len(custom_param_list) == self._length
            and clock.version == self._version
        )

    def _is_quiet(self, width: int, newest: Callable[[], Sequence[int]] | None) -> bool:
        """Tell whether it is sure that no row got a token that it watches for."""
        watch = self._watch
        if not watch:
            return True
        if width > 1 or newest is None:
            return False
        # Each row got one token: the last of its ``output_ids``, or one of ``newest()``.
        last = [tokens[-1] for tokens in self._watching if tokens]
        return watch.isdisjoint(last) and watch.isdisjoint(newest())

    def may_wake(self, custom_param_list: Sequence[Any], width: int) -> bool:
        """Tell whether the next step will read the drafted tokens of these requests.

        Args:
            custom_param_list: As for :meth:`step_asleep`.
            width: As for :meth:`step`.
        """
        if self._is_asleep(custom_param_list, width) and not self._watch:
            return False
        reach = clock.now + width - 1
        return any(
            row is not None
            and (row.wake <= reach or row.watch is not None or row.form is not None)
            and row.needs is not _NONE
            for row in rows_of(custom_param_list)
        )

    def step(  # noqa: PLR0913 - a step has this many parts
        self,
        logits: torch.Tensor,
        rows: Sequence[Row | None],
        custom_param_list: Sequence[Any],
        grammar_rows: Sequence[int] = (),
        *,
        repeated: bool = False,
        drafts: Callable[[], Drafts] | None = None,
        width: int = 1,
        temperatures: torch.Tensor | None = None,
    ) -> RawRows | None:
        """Ask the rows that are awake for their edits, and apply all edits in place.

        Args:
            logits: Shape ``(len(rows) * width, vocab)``, any float dtype. Request ``i`` has the
                rows from ``i * width`` on.
            rows: The requests, ``None`` for a request without a processor.
            custom_param_list: For each request SGLang's ``custom_params``, for processors that
                override ``__call__``.
            grammar_rows: Indices of rows of ``logits`` that a grammar has masked.
            repeated: Whether ``rows`` names a request several times in a row, for drafted tokens
                that cannot be seen. Only processors without history can serve those.
            drafts: Returns the drafted tokens; called at most once, and only if a row is awake.
            width: The most tokens that a request can get in this step: the nodes of its draft.
            temperatures: Divisors of the logits for logprobs, shape ``(len(rows), 1)``; ``None``
                for 1.

        Returns:
            The raw logprobs of edited rows, if an edited request asks for them.
        """
        step = Step(logits, rows, custom_param_list, grammar_rows, width, clock.now)
        clock.now += width
        if self.forms is not None:
            step.formed = self.forms.run(step, drafts, repeated=repeated)
        asked = _ask_rows(step, drafts, repeated=repeated)
        if self._before_edits is not None and self._will_edit(step):
            step.leave(self._before_edits(logits, step))
        raw = raw_rows(step, temperatures)
        if step.dense:
            _compute(step)
        if step.copied:
            _put_back(step, step.copied)
        version = clock.version
        self._apply(step)
        if self.forms is not None:
            self.forms.join(step, asked)
        persistent, looked_at, _ = self._persistent
        if (
            custom_param_list is self._params
            and (self.forms is None or self.forms.are_empty)
            and clock.version == version  # otherwise a row has ended, or has other edits
            and not looked_at
            and (persistent is None or (raw is None and not grammar_rows))
        ):
            self._rest(rows)
        return None if raw is None else raw.compared_with(logits)

    def _rest(self, rows: Sequence[Row | None]) -> None:
        """Let the batch sleep as long as all its rows do."""
        known = [row for row in rows if row is not None]
        self._until = min((row.wake for row in known), default=NEVER)
        self._version = clock.version
        watches = {row.watch for row in known if row.watch is not None}
        self._watch = frozenset().union(*watches) if len(watches) > 1 else next(iter(watches), _NO)
        self._watching = [row.output_ids for row in known if row.watch is not None]

    def _will_edit(self, step: Step) -> bool:
        """Tell whether a step edits its logits, once its rows were asked."""
        if step.dense or step.copied or step.pools or step.edits or step.formed:
            return True
        return self._plan_persistent(step).plan is not None

    def _apply(self, step: Step) -> None:
        """Apply all edits of a step, in this order.

        1. The device answers questions, which are about the logits before any edit.
        2. Pools, which add up probabilities that no other edit has changed.
        3. Rows whose step edits leave no token end. An ended row has no persistent edits, so this
           comes before those are collected.
        4. Persistent edits, before step edits: a bias of the step is rounded on top of theirs.
        5. Step edits.
        6. Rows keep only logits near their largest, if they ask for it: the largest and the
           deviation are those of the tokens that all other edits leave. Then rows are scaled.
           Watermarks come last, because they depend on the probabilities that are sampled.
        7. Rows whose persistent edits leave no token end.
        8. Rows that may have lost their last finite logit, or have NaN, are looked at: a row from
           which nothing can be sampled ends.
        """
        logits = step.logits
        step_plan = _plan_step(step) if step.edits or step.formed else None
        if step_plan is not None:
            step_plan.decide(step.read, step.answers)
        pool(logits, step.pools)
        if step_plan is not None:
            end_conflicts(step, step_plan)
        persistent, looked_at, masked = self._plan_persistent(step)
        plans = [plan for plan in (persistent, step_plan) if plan is not None]
        late = masked and masked & {*step.edits, *step.dense, *step.rewritten}
        seen = [*{*looked_at, *late, *(step.rewritten if plans else ())}]
        rows = index_on(logits.device, seen) if seen else None
        before = None if rows is None else logits.index_select(0, rows)
        for plan in plans:
            plan.apply(logits)
        apply_last(logits, plans)
        if persistent is not None:
            end_conflicts(step, persistent)
        if before is not None and rows is not None:
            end_not_finite(step, seen, rows, before)

    def _plan_persistent(self, step: Step) -> _Persistent:
        """Return the persistent edits and the rows to look at, anew only if the batch changed."""
        logits, rows, grammar_rows, width = step.logits, step.rows, step.grammar_rows, step.width
        layout = _layout(logits, width)
        key = ([row and row.version for row in rows], *layout, *grammar_rows)
        if key != self._key:
            builder, looked_at, masked, exist = PlanBuilder(logits), list[int](), set[int](), False
            for request, row in enumerate(rows):
                if row is None:
                    continue
                for index in range(request * width, (request + 1) * width):
                    has_grammar = index in grammar_rows
                    is_masked = row.host.restricted or has_grammar
                    if row.host.spoils or (is_masked and row.persistent is not None):
                        looked_at.append(index)
                    elif is_masked:
                        masked.add(index)
                    if row.persistent is not None:
                        exist = True
                        builder.add_persistent(index, row.persistent, has_grammar=has_grammar)
            self._key, self._layout = key, layout
            plan = Plan(builder, logits) if exist else None
            self._persistent = _Persistent(plan, looked_at, masked)
        return self._persistent


class _Persistent(NamedTuple):
    """Persistent edits and rows to look at, kept as long as the rows of a batch stay the same.

    Attributes:
        plan: The persistent edits, or ``None``.
        looked_at: Rows that are looked at in every step: their requests' own fields may spoil them,
            or persistent edits and SGLang's own masks could together leave no token.
        masked: Rows that SGLang masks, which are looked at in steps that edit them.
    """

    plan: Plan | None
    looked_at: list[int]
    masked: set[int]


def _layout(logits: torch.Tensor, width: int) -> tuple[object, ...]:
    """Return the width and the layout of the logits, on which a plan depends."""
    return width, logits.shape, logits.stride(), logits.dtype, logits.device


def _ask_rows(step: Step, drafts: Callable[[], Drafts] | None, *, repeated: bool) -> list[int]:
    """Ask the rows that are awake, and return the indices of the rows that were asked.

    Args:
        step: The step.
        drafts: As for :meth:`Batch.step`.
        repeated: As for :meth:`Batch.step`.
    """
    asked: list[int] = []
    reach = step.now + step.width - 1
    for index, row in enumerate(step.rows):
        if row is None:
            continue
        wake = row.wake
        if wake > reach and row.watch is None and (wake >= NEVER or not repeated):
            continue
        if repeated and row.needs is not _NONE:
            refuse_repeated(row)
        elif step.width > 1 and (row.needs is not _NONE or row.dense) and drafts is not None:
            step.drafts = step.drafts or drafts()
            asked += [index] if visit_drafts(step, index, row, step.drafts) else []
        elif _visit(step, index, row):
            asked.append(index)
    return asked


def _visit(step: Step, index: int, row: Row) -> bool:
    """Ask the processor of a request for its edits of this step; return whether it was asked."""
    try:
        if not row.accept_tokens():
            return False
        if row.dense:
            step.dense[index] = row.wholes(step.custom_params[index])
        else:
            _edit(step, index, row)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        row.end(row.fault(error))
        return False
    return True


def _edit(step: Step, index: int, row: Row) -> None:
    """Ask a row for its edits, and end its request if they say so."""
    recording = ask(step, index, row)
    if recording.end is not None:
        row.host.finish(recording.end)


def _compute(step: Step) -> None:
    """Compute whole rows, then ask for the edits of these rows."""
    for index, error in compute(step.logits, step.dense, step.grammar_rows).items():
        del step.dense[index]
        if not contradicts(step, index, error):
            end_at(step, index, error)
    step.read_anew()
    for index in step.dense:
        _edit_computed(step, index)


def _edit_computed(step: Step, index: int) -> None:
    """Ask a processor for the edits of a row that other processors computed."""
    row = step.rows[index // step.width]
    if row is None:
        return
    position, path = step.nodes.get(index, (row.position, None))
    if path is None:
        row.recorder.add(position, forced=False)
    else:
        row.edit_log.add_drafted(position, path, forced=False)
    if not row.edits:
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
    """Write back rows that processors changed themselves, with one wait for all of them."""
    import torch

    indices = [index for index, _ in copied]
    try:
        rows = index_on(step.logits.device, indices)
        changed = torch.stack([row for _, row in copied])
        write_back(step.logits, indices, rows, changed, step.grammar_rows)
    except Exception as error:  # noqa: BLE001 - a processor may leave anything in its row
        if len(copied) == 1:
            if not contradicts(step, indices[0], error):
                fail_at(step, indices[0], error)
            step.edits.pop(indices[0], None)
        else:  # one row at a time, to find the request that fails
            for one in copied:
                _put_back(step, [one])


def _plan_step(step: Step) -> Plan:
    """Return the plan of the step edits."""
    builder = PlanBuilder(step.logits)
    if step.formed is not None:
        builder.add_forms(step.formed)
    for index, recording in step.edits.items():
        row = step.rows[index // step.width]
        persistent = None if row is None else row.persistent
        has_grammar = index in step.grammar_rows
        compiled = builder.add_step(index, recording, persistent, has_grammar=has_grammar)
        if row is not None:
            row.step_compiled = compiled
    return Plan(builder, step.logits)
