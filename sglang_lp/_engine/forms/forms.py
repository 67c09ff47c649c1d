"""The forms of one batch: rows join and leave them, and a step runs them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp._engine.forms.members import Members
from sglang_lp._engine.forms.slots import (
    ASKED,
    FED,
    LAST,
    LIMIT,
    RESUMED,
    UNKNOWN,
    UNTIL,
    WAKE,
    Formed,
    Part,
    Slots,
    log_accepted,
    log_answers,
    log_step,
)
from sglang_lp._engine.forms.walk import HOW
from sglang_lp._engine.history.row_state import RowState
from sglang_lp._engine.turns.turn import LONGEST_SLEEP
from sglang_lp.edits import NEVER
from sglang_lp.faults import from_signal
from sglang_lp.forms.bits import bits_of
from sglang_lp.forms.form import FEWEST_STEPS, MOST_NODES, EditKind, Visits
from sglang_lp.forms.out import ASK, ASKS, FORCED, Out

if TYPE_CHECKING:
    from sglang_lp._engine.forms.members import New
    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row
    from sglang_lp._engine.step import Step
    from sglang_lp._engine.turns.turn import Turn
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Form

logger = logging.getLogger(__name__)

#: Fewest rows that run by forms: fewer take less time one by one (``benchmarks.cost.forms``).
_FEWEST = 8

_BANNING = {EditKind.BANS, EditKind.ASKS}

_FAILED = "sglang-lp: the forms of a batch failed; its rows are asked one by one from now on"
_CANNOT_JOIN = "sglang-lp: a request cannot run by forms, and is asked by itself; others likewise"


class Forms:
    """Runs the rows of a batch that have a form.

    A row is asked by itself first, and joins its forms after that step. It stays while each step
    brings it one token, or the accepted ones of a draft. It leaves if anything else happens to its
    history, if a grammar masks it, or if its edits may change; it is asked by itself then, in the
    same step, and may join again.

    Args:
        kinds: By class of processor, the class of its form.
        fewest: Fewest rows of a batch that run by forms when rows join. Rows stay when others
            leave.
    """

    def __init__(self, kinds: Mapping[type, type[Form]], fewest: int = _FEWEST) -> None:
        self._fewest = fewest
        made = {form: form() for form in {*kinds.values()}}
        self._forms = {kind: made[form] for kind, form in kinds.items()}
        self._slots = Slots()
        self._out = Out()
        self._rows: Sequence[Row | None] = ()
        self._members = Members((), self._slots)
        #: The members whose questions ``self._slots.answers`` answers.
        self._asked: Members | None = None
        #: ``self._slots.left`` when the members were gathered.
        self._left = 0
        #: Whether the log has an error of a row that could not join.
        self._has_told = False
        #: Buffer for runs of edited positions that end in a step, as ``ended`` of ``log_step``.
        self._ended: Any = np.empty((0, 4), np.int64)
        #: Rows that have joined and whose edit logs are not settled.
        self._joined: list[Row] = []

    @property
    def are_empty(self) -> bool:
        """Whether no row of the latest batch runs by forms."""
        return not self._members.rows

    def run(self, step: Step, drafts: Callable[[], Drafts] | None, *, repeated: bool) -> Out | None:
        """Feed and edit the rows that have a form.

        Args:
            step: The step.
            drafts: As for :meth:`~sglang_lp._engine.batch.Batch.step`.
            repeated: As for :meth:`~sglang_lp._engine.batch.Batch.step`.

        Returns:
            Their edits, valid until the next step; ``None`` if no row has a form, or if forms
            failed, so that all rows have to be asked.
        """
        try:
            if step.rows != self._rows or self._left != self._slots.left:
                self._gather(step.rows)
            if self._members.rows and (repeated or not _may_run(step, drafts)):
                self._leave(range(len(self._members.rows)))
            return self._run(step, drafts) if self._members.rows else None
        except BaseException as error:
            self._give_up(step.rows)
            if from_signal(error):
                raise
            logger.exception(_FAILED)
            return None

    def _give_up(self, rows: Sequence[Row | None]) -> None:
        """Ask every row by itself from now on."""
        self._forms = {}
        for row in rows:
            if row is not None:
                row.leave_form()
        self._gather(())

    def _run(self, step: Step, drafts: Callable[[], Drafts] | None) -> Out | None:
        width = step.width
        if step.grammar_rows:
            masked = {row // width for row in step.grammar_rows}
            index = self._members.index.tolist()
            self._leave([place for place, at in enumerate(index) if at in masked])
        trees = None
        if width > 1 and drafts is not None and self._members.rows:
            step.drafts = drafts()
            trees = step.drafts.numbers()
            self._slots.widen(width)
        while self._members.rows:
            members = self._members
            own = members.no_drafts if trees is None else trees[members.index]
            new, others = members.read(own)
            if new is not None and not others:
                return self._edit(step, own, new)
            self._leave(others)
        return None

    def _edit(self, step: Step, trees: Any, new: New) -> Out:
        """Log the edits of earlier steps that are decided by now, then feed and edit all members.

        Args:
            step: The step.
            trees: The drafts of the members, as for :func:`~sglang_lp._engine.forms.walk.walk`.
            new: The tokens of the members.
        """
        members, out, slots, width = self._members, self._out, self._slots, step.width
        logits, count = step.logits, len(new.visits)
        before, self._asked = self._asked, None
        room = max(len(new.tokens), len(members.rows), 0 if before is None else len(before.rows))
        if len(self._ended) < room:
            self._ended = np.empty((2 * room, 4), np.int64)
        self._settle(new)
        if slots.answers is not None and before is not None:
            answers = np.array(slots.answers.known(), np.bool_)
            ended = log_answers(slots.numbers, slots.drafted, before.slots, answers, self._ended)
            self._log(ended, before)
            slots.answers = None
        if slots.drafted.shape[1] > 1:
            ended = log_accepted(
                *(slots.numbers, slots.drafted, members.slots),
                *(new.tokens, new.since, self._ended),
            )
            self._log(ended, members)
        members.feed(new)
        stride = logits.stride(0) if logits.stride(1) == 1 else step.vocab_size
        out.begin(count, step.vocab_size, (members.room + width) * width, members.width)
        visits = Visits(new.first, new.visits, int(new.deepest), stride, step.vocab_size)
        for form, group in members.groups:
            form.step(group, visits, out)
        if not out.is_whole:
            raise MemoryError("the edits of a step have no room")
        edited = out.edited[:count]
        asked = np.nonzero(edited & ASKS)[0]
        if len(asked):
            asked = np.unique(np.searchsorted(new.first, asked, "right") - 1)
            out.drop(members.index[asked], width, stride)
            for place in asked.tolist():
                edited[new.first[place] : new.first[place + 1]] = 0
        ended = log_step(
            *(slots.numbers, slots.drafted, members.slots, edited),
            *(new.visits, new.first, trees, width, self._ended),
        )
        self._log(ended, members)
        if out.counts[ASK]:
            slots.answers, self._asked = step.answers, members
        self._leave(asked.tolist())
        return out

    def _settle(self, new: New) -> None:
        """Resolve what was undecided in edit logs when their rows joined."""
        if not self._joined:
            return
        places = {id(row): place for place, row in enumerate(self._members.rows)}
        left = []
        for row in self._joined:
            place = places.get(id(row))
            if place is not None:
                tokens = new.tokens[new.since[place] : new.since[place + 1]].tolist()
                row.edit_log.resolve([*row.tokens, *tokens])
            elif row.form is not None:  # of another batch
                left.append(row)
        self._joined = left

    def _log(self, ended: int, members: Members) -> None:
        """Move the first ``ended`` runs of the buffer to the edit logs of their rows."""
        for place, since, until, how in self._ended[:ended].tolist():
            members.rows[place].edit_log.add_run(since, until, forced=how >= FORCED)

    def join(self, step: Step, asked: Sequence[int]) -> None:
        """Let rows run by forms from the next step on, unless they are few.

        Args:
            step: A step that is over.
            asked: Indices of the rows that were asked for their edits.
        """
        if asked and len(asked) + len(self._members.rows) >= self._fewest:
            try:
                self._let_join(step, asked)
            except BaseException as error:
                self._give_up(step.rows)
                if from_signal(error):
                    raise
                logger.exception(_FAILED)

    def _let_join(self, step: Step, asked: Sequence[int]) -> None:
        found = []
        for index in asked:
            row = step.rows[index]
            if row is None or row.joins_at > row.position or not self._may_form(row):
                continue
            if index * step.width not in step.grammar_rows:
                turns = self._formed_turns(row, step.width)
                if turns and not (step.width > 1 and _forces(turns)):
                    found.append((row, turns))
        if len(found) + len(self._members.rows) < self._fewest:
            return
        for row, turns in found:
            try:
                if _fit(row, turns, step.vocab_size):
                    self._join(row, turns, step.width)
                else:
                    row.joins_at = _next_try(row, turns)
            except Exception:
                row.form, row.wake, row.joins_at = None, 0, NEVER
                if not self._has_told:  # else each such request writes a line
                    self._has_told = True
                    logger.exception(_CANNOT_JOIN)
        self._gather(step.rows)

    def _join(self, row: Row, turns: Sequence[tuple[Turn, Form]], width: int) -> None:
        wake = _wakes_at(row, turns)
        if wake <= row.position + 2 * width:
            return
        limit = len(row.prompt_ids) + row.resumed + row.host.limit
        parts = [part for turn, form in turns if (part := Part.of(form, turn, row.position, limit))]
        if len(parts) < len(turns):
            row.joins_at = _next_try(row, turns)
            return
        watch = _watch_of(row)
        bits = None if watch is None else self._bits_of(watch)
        row.form = formed = Formed(parts, bits, self._slots)
        numbers = self._slots.numbers[formed.slot]
        numbers[FED], numbers[RESUMED] = row.position, row.resumed
        numbers[LIMIT] = row.host.limit + row.resumed
        numbers[LAST] = row.tokens[-1] if formed.reads_tokens else UNKNOWN
        # Turns that sleep are asked where they wake, and with them the row.
        numbers[WAKE], numbers[UNTIL], numbers[ASKED] = wake, -1, -1
        self._slots.drafted[formed.slot, :, HOW] = 0
        if not row.edit_log.is_settled:
            self._joined.append(row)
        if watch is not None:
            numbers[WAKE] = min(int(numbers[WAKE]), row.position + LONGEST_SLEEP)
        row.wake, row.watch, row.leaves_one = NEVER, None, False

    def _bits_of(self, token_ids: frozenset[int]) -> ArenaBlock:
        return self._slots.watched.share(token_ids, lambda: bits_of(token_ids))

    def _may_form(self, row: Row) -> bool:
        """Tell whether a row may run by forms now, as far as that is cheap to find out."""
        if row.joins_at < 0:
            kinds = self._forms.keys()
            may = _is_plain(row) and any(type(t.processor) in kinds for t in row.turns)
            row.joins_at = 0 if may else NEVER
        position = row.position
        return position >= row.joins_at and row.state is RowState.RUNNING and position > row.resumed

    def _formed_turns(self, row: Row, width: int) -> list[tuple[Turn, Form]]:
        """Return the turns of a row that are at work with their forms; none if one has no form."""
        turns: list[tuple[Turn, Form]] = []
        for turn in row.turns:
            request = turn.request
            if request.phases is not None and not request.phases.is_settled:
                return []
            if request.is_closed:
                continue
            form = self._forms.get(type(turn.processor))
            if turn.sleeps_at(request.position + 1, width) and not (
                form is not None and form.naps and turn.wake < NEVER
            ):
                continue
            if form is None:
                return []
            turns.append((turn, form))
        return turns

    def _leave(self, places: Iterable[int]) -> None:
        """Let rows be asked by themselves again."""
        rows = [self._members.rows[place] for place in places]
        for row in rows:
            row.leave_form()
        if rows:
            self._gather(self._rows)

    def _gather(self, rows: Sequence[Row | None]) -> None:
        self._rows, self._members = rows, Members(rows, self._slots)
        self._left = self._slots.left


def _may_run(step: Step, drafts: Callable[[], Drafts] | None) -> bool:
    """Tell whether forms know the drafts of a step, if it has any."""
    return step.width == 1 or (drafts is not None and step.width <= MOST_NODES)


def _is_plain(row: Row) -> bool:
    """Tell whether nothing about a request needs its row to be asked by itself."""
    host = row.host
    return (
        not row.dense
        and row.recorder is row.edit_log
        and not (host.may_lag or host.restricted or host.spoils or host.returns_sampling_mask)
        and host.raw is None
    )


def _forces(turns: Sequence[tuple[Turn, Form]]) -> bool:
    """Tell whether turns force tokens: drafts then ask the processor, so it has to be fed."""
    return any(form.edits is EditKind.FORCES for _, form in turns)


def _wakes_at(row: Row, turns: Sequence[tuple[Turn, Form]]) -> int:
    """Return the position at which a turn of a row wakes that has no part in its form."""
    formed = [turn for turn, _ in turns]
    asleep = [
        turn
        for turn in row.turns
        if turn not in formed and turn.wake < NEVER and not turn.request.is_closed
    ]
    return min((turn.wake + row.position - turn.request.position for turn in asleep), default=NEVER)


def _watch_of(row: Row) -> frozenset[int] | None:
    """Return the tokens that may open or close the phase of a turn; ``None`` without phases."""
    followed = {id(one): one for turn in row.turns if (one := turn.request.phases) is not None}
    telling = {one.telling for one in followed.values()}
    return frozenset().union(*telling) if len(telling) > 1 else next(iter(telling), None)


def _next_try(row: Row, turns: Sequence[tuple[Turn, Form]]) -> int:
    """Return the position at which a row whose turns do not fit now tries again.

    A try takes as long as some steps, so it comes only after ``FEWEST_STEPS``, and only if a form
    may fit later.
    """
    again = any(form.comes_and_goes for _, form in turns)
    return row.position + FEWEST_STEPS if again else NEVER


def _fit(row: Row, turns: Sequence[tuple[Turn, Form]], vocab_size: int) -> bool:
    """Tell whether forms can edit a row without knowledge of each other and of persistent edits.

    They can if no two bias the same token, all bans together leave a token, and a row with a forced
    token has no other edits.
    """
    bans, left, kinds = 0, vocab_size, [form.edits for _, form in turns]
    persistent, biased = row.persistent, kinds.count(EditKind.BIASES)
    watches = any(turn.request.phases is not None for turn in row.turns)
    for turn, form in turns:
        params, reads = turn.request.params, form.reads_tokens or watches
        if not form.fits(params, vocab_size) or (reads and not row.exact):
            return False
        bans += form.most(params) if form.edits in _BANNING else 0
    if persistent is not None:
        forced = [form.forced(turn.request) for turn, form in turns]
        if persistent.conflict is not None or persistent.forced is not None:
            return False
        if not all(token_id is None or persistent.mask.permits(token_id) for token_id in forced):
            return False
        left = max(persistent.mask.min_count, persistent.mask.count)
        biased += int(len(persistent.biases[0]) > 0)
    if EditKind.FORCES in kinds and not (len(kinds) == 1 and persistent is None):
        return False
    asks = kinds.count(EditKind.ASKS)
    if asks > 1 or (asks and not {*kinds} <= {EditKind.ASKS, EditKind.BIASES}):
        return False
    return biased <= 1 and (not bans or bans < left)
