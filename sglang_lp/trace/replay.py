"""Runs a processor over an existing answer, and records its edits at each step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from sglang_lp._engine.apply.reading import Reading
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.host import Host
from sglang_lp._engine.history.row import Row
from sglang_lp.edits import NEVER
from sglang_lp.edits.recording import Recording
from sglang_lp.links import prepare
from sglang_lp.params import take_beside
from sglang_lp.request import History

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.turns.turn import Turn
    from sglang_lp.edits import Edits, End
    from sglang_lp.edits.ids import Ids
    from sglang_lp.errors import SglangLpError
    from sglang_lp.params import Parameters
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

__all__ = ["Edit", "Replay", "ReplayedStep", "What", "replay"]


class What(StrEnum):
    """Kind of an edit."""

    FORCED = "forced"
    ALLOWED = "allowed"
    BANNED = "banned"
    BIASED = "biased"
    #: Tokens far below the largest logit were excluded.
    NEAR_TOP = "near_top"
    #: All logits were multiplied.
    SCALED = "scaled"
    #: Some tokens gave their probability to another.
    POOLED = "pooled"
    #: The request ends with the token of this step.
    ENDED = "ended"
    #: The processor changed the logits itself; only tokens that it masked are known.
    REWRITTEN = "rewritten"


class Edit(NamedTuple):
    """One edit by one processor, at one step or at several.

    Attributes:
        by: Index of the processor.
        what: Kind of the edit.
        token_ids: The edited tokens; for ``POOLED`` the tokens that lose their probability.
        values: For ``BIASED`` the bias of each token; for ``NEAR_TOP`` the distance from the
            largest logit within which tokens stay, in standard deviations; for ``SCALED`` the
            factor.
        into: For ``POOLED`` the token that gets the probability.
        why: Reason in the processor's words; for ``ENDED`` the client's reason; may be empty.
        always: Whether the edit holds from its first step to the end.
    """

    by: int
    what: What
    token_ids: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    into: int | None = None
    why: str = ""
    always: bool = False


class ReplayedStep(NamedTuple):
    """One step of an answer.

    Attributes:
        edits: Indices into :attr:`Replay.edits`.
        looked: Number of likeliest tokens that a processor read; 0 for none.
        problem: Contradiction between the token and the edits, or reason for the request's end.
    """

    edits: tuple[int, ...]
    looked: int
    problem: str


class Replay(NamedTuple):
    """The edits of a request's processors over its answer.

    Attributes:
        processors: Processors with their parsed parameters; a chain's links, not the chain.
        edits: Each distinct edit once.
        steps: A step for each token of the answer.
    """

    processors: list[tuple[LogitProcessor, Parameters]]
    edits: list[Edit]
    steps: list[ReplayedStep]


def replay(  # noqa: PLR0913 - a request and its answer have this many parts
    processor: LogitProcessor,
    custom_params: Mapping[str, Any],
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    vocab_size: int,
    served: ServedModel,
    limit: int | None = None,
) -> Replay:
    """Run a processor over an answer.

    Logits are unknown. If a processor reads the likeliest tokens, the token of the answer is the
    likeliest, and no other token is known.

    Args:
        processor: The processor of the request.
        custom_params: The parameters of the request.
        prompt_ids: Token ids of the prompt.
        output_ids: Token ids of the answer, below ``vocab_size``.
        vocab_size: Number of logits in a row of the model, or more.
        served: The model as far as it is known, for parameters that depend on it.
        limit: Number of tokens after which the answer ends, if known.

    Raises:
        RequestError: The parameters do not fit: a server refuses the request.
    """
    import torch

    custom_params, beside = take_beside(custom_params, len(prompt_ids))
    whole = None if limit is None else limit + beside.resumed
    servings = prepare(processor, custom_params, served, whole)
    notes, host = _Notes(), _PastHost(prompt_ids, served.tokenizer)
    watched: Any = [_Watched(one.processor, by, notes) for by, one in enumerate(servings)]
    runs = [
        one._replace(processor=seen, known=None)
        for one, seen in zip(servings, watched, strict=True)
    ]
    host.resumed = beside.resumed
    reading = _PastReading()
    row = Row(runs, host, reading)
    batch, logits = Batch(), torch.zeros(1, vocab_size)
    given, steps = {**custom_params, "__req__": host.request}, list[ReplayedStep]()
    for position, token_id in enumerate(output_ids):
        if host.over:
            steps.append(ReplayedStep((), 0, host.over))
            continue
        reading.came, reading.looked, reading.rewrote = token_id, 0, row.dense
        batch.step(logits, [row], [given])
        found = [
            edit
            for turn, one in zip(row.turns, watched, strict=True)
            for edit in _edits_at(row, turn, one, position + beside.resumed)
        ]
        if reading.rewrote:
            by = next((by for by, one in enumerate(watched) if one.dense), 0)
            found += notes.changed(logits, by)
        if found:
            logits.zero_()
        against = notes.against(found, token_id)
        problem = f"{servings[against[0]].name}: {against[1]}" if against else ""
        steps.append(ReplayedStep((*found,), reading.looked, host.problem or problem))
        host.output_ids.append(token_id)
    processors = [(one.processor, one.params) for one in servings]
    return Replay(processors, notes.edits, steps)


def _edits_at(row: Row, turn: Turn, watched: _Watched, position: int) -> list[int]:
    """Return the edits of a turn that hold at a position of the row."""
    request = turn.request
    if request.phase is None:
        return watched.at(position - request.skipped)
    # A row that was not asked sleeps, and a turn that keeps edits in its phase does not.
    is_over = row.position != position or turn.was_closed
    return [] if is_over else watched.at(request.position)


class _PastHost(Host):
    """Host of a replayed request: records the request's end instead of ending it.

    Attributes:
        output_ids: The answer up to the replayed step.
        problem: Reason for the request's end at this step.
        over: Problem of every later step.
    """

    __slots__ = ("output_ids", "over", "problem")

    def __init__(self, prompt_ids: Sequence[int], tokenizer: Any) -> None:
        self.output_ids = array("q")
        super().__init__(
            SimpleNamespace(
                origin_input_ids=array("q", prompt_ids),
                output_ids=self.output_ids,
                tokenizer=tokenizer,
            )
        )
        self.problem = self.over = ""

    def end(self, error: SglangLpError) -> None:
        self.problem = f"the request ends here with an error: {error}"
        self.over = "the request had ended with an error before"

    def finish(self, end: End) -> None:  # noqa: ARG002 - it is noted as an edit
        self.over = "the processor had ended the answer before"


class _PastReading(Reading):
    """The logits of a replayed step, which are unknown.

    Attributes:
        came: The sampled token.
        looked: Number of likeliest tokens that were read.
        rewrote: Whether a processor may have changed the logits itself.
    """

    __slots__ = ("came", "looked", "rewrote")

    def __init__(self) -> None:
        super().__init__()
        self.came, self.looked, self.rewrote = -1, 0, False

    @property
    def logits(self) -> torch.Tensor:
        """A row of zeros."""
        self.rewrote = True
        return super().logits

    def top(self, count: int) -> list[int]:
        """Return the sampled token."""
        self.looked = max(self.looked, count)
        return [self.came]

    def is_among_top(self, token_ids: Iterable[int], count: int) -> bool:
        """Tell whether the sampled token is one of these."""
        return not {*token_ids}.isdisjoint(self.top(count))


class _Watched:
    """Runs a processor and records its edits."""

    tolerates_lag = True

    def __init__(self, processor: LogitProcessor, by: int, notes: _Notes) -> None:
        self._processor = processor
        self._by, self._notes = by, notes
        #: Edits to the end of the request; edits in a range of positions, and the range.
        self._always: list[int] = []
        self._now: list[int] = []
        self._between = range(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def edit(self, request: Request, edits: Edits) -> None:
        """Record the processor's edits, and declare them."""
        own = Recording(edits.vocab_size)
        self._processor.edit(request, own)
        why, for_good = self._processor.explain(request), self.needs is History.NONE
        if own.standing is not None:
            self._always += self._notes.take(self._by, own.standing, why, always=True)
            edits.always().add(own.standing)
        self._now = self._notes.take(self._by, own, why, always=for_good)
        until = own.wake if own.holds and own.wake else request.position + 1
        self._between = range(request.position, NEVER if for_good else until)
        edits.add(own)
        if own.wake is not None:
            (edits.hold_until if own.holds else edits.wake_at)(own.wake)
        if own.end is not None:
            edits.finish(*own.end)

    def at(self, position: int) -> list[int]:
        """Return the edits that hold at a position."""
        return [*self._always, *self._now] if position in self._between else self._always


def _each(values: array[float] | float, count: int) -> tuple[float, ...]:
    """Return the bias of each id; a number is the bias of all."""
    return (values,) * count if isinstance(values, float) else tuple(values.tolist())


class _Notes:
    """The recorded edits, each once."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self._known: dict[Edit, int] = {}
        self._members: dict[int, frozenset[int]] = {}
        self._listed: WeakKeyDictionary[Ids, tuple[int, ...]] = WeakKeyDictionary()

    def take(self, by: int, recording: Recording, why: str, *, always: bool) -> list[int]:
        """Record the edits of a recording; return their indices."""
        found = [Edit(by, What.FORCED, (recording.forced,))] if recording.forced is not None else []
        found += [Edit(by, What.ALLOWED, self._ids(ids)) for ids in recording.allowed]
        found += [Edit(by, What.BANNED, self._ids(ids)) for ids in recording.banned]
        found += [
            Edit(by, What.BIASED, self._ids(ids), _each(values, len(ids)))
            for ids, values in recording.biased
        ]
        if recording.sigmas is not None:
            found.append(Edit(by, What.NEAR_TOP, values=(recording.sigmas,)))
        if recording.factor is not None:
            found.append(Edit(by, What.SCALED, values=(recording.factor,)))
        found += [
            Edit(by, What.POOLED, self._ids(ids), into=into) for ids, into in recording.pooled
        ]
        noted = [self._note(edit._replace(why=why, always=always)) for edit in found]
        if recording.end is not None:
            noted.append(self._note(Edit(by, What.ENDED, why=recording.end.reason)))
        return noted

    def changed(self, logits: torch.Tensor, by: int) -> list[int]:
        """Record the tokens that a processor masked in the logits: all were 0 before."""
        shut = (logits[0] == -math.inf).nonzero()[:, 0].tolist()
        return [self._note(Edit(by, What.REWRITTEN, tuple(shut)))]

    def against(self, found: Sequence[int], token_id: int) -> tuple[int, str] | None:
        """Return processor and problem of an edit that a token contradicts, or ``None``."""
        for index in found:
            edit = self.edits[index]
            if edit.what is What.FORCED and edit.token_ids != (token_id,):
                return edit.by, "another token was forced here"
            if edit.what is What.ALLOWED and token_id not in self._set(index):
                return edit.by, "this token was not among the allowed ones"
            if edit.what in {What.BANNED, What.POOLED} and token_id in self._set(index):
                return edit.by, "this token was banned"
        return None

    def _note(self, edit: Edit) -> int:
        index = self._known.setdefault(edit, len(self.edits))
        if index == len(self.edits):
            self.edits.append(edit)
        return index

    def _ids(self, ids: Ids | list[int]) -> tuple[int, ...]:
        if isinstance(ids, list):
            return (*ids,)
        if ids not in self._listed:
            self._listed[ids] = (*ids,)
        return self._listed[ids]

    def _set(self, index: int) -> frozenset[int]:
        if index not in self._members:
            self._members[index] = frozenset(self.edits[index].token_ids)
        return self._members[index]
