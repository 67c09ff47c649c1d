"""The turns of a row: how they are started, fed, asked and put to sleep together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from sglang_lp._engine.apply.deciding import decide
from sglang_lp._engine.apply.plan_builder import precompile
from sglang_lp._engine.apply.reading import Reading
from sglang_lp._engine.turns.turn import Turn, Whole
from sglang_lp.edits import NEVER, End
from sglang_lp.edits.recording import Recording
from sglang_lp.faults import UNNAMED
from sglang_lp.flags import Flags
from sglang_lp.links import Phases, Serving
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp._engine.compiled.edits import CompiledEdits
    from sglang_lp._engine.history.host import Host

#: Looked up once and not for each row: a member of an enumeration is a slow attribute.
_NONE = History.NONE

#: *Always* edits, each with the place of its turn.
_Always: TypeAlias = tuple[tuple[int, Recording], ...]

#: What is known at a node of a draft: the states of the processors, the phases, and the *always*
#: edits that were declared along the draft.
States: TypeAlias = tuple[tuple[Any, ...], tuple[Phases, ...], _Always]


class TurnList(ABC):
    """The turns of a row, which are asked and sleep together.

    Attributes:
        servings: The processors of the request with their parameters, in order.
        turns: The turn of each.
        name: Names of the processors, read once: naming a fault must not fail.
        flags: Their flags, combined.
        needs: The most that any of them has to know of the tokens.
        dense: Whether any of them computes whole rows.
        edits: Whether any of them is asked for edits.
        reading: The row of the logits of a step, as the processors read it.
        resumed: Number of tokens at the end of the prompt that are treated as generated. Positions
            count these as well.
        position: Number of generated tokens before the token that is sampled now.
        exact: Whether ``tokens`` has every generated token up to ``position``.
        running: The turn whose processor is being called, to name it if it fails.
        wakes_at: Position before which no turn has to be asked again, as of the last
            :meth:`ask_turns`; ``NEVER`` for none.
        watch: Tokens that wake the row before that position; ``None`` for none.
        tokens: Generated tokens that were fed, oldest first.
        only_excludes: Whether edits may only exclude tokens, for ``return_sampling_mask``.
        persistent: Compiled edits that apply at every step, or ``None``.
        leaves_one: Whether the edits of its last step left only one token.

    Args:
        servings: As the attribute.
        host: The host of the request.
        reading: As the attribute; ``None`` for the logits of the host's steps.
    """

    __slots__ = (
        "_always",
        "_apart",
        "_only",
        "_phases",
        "_skipped",
        "dense",
        "edits",
        "exact",
        "flags",
        "leaves_one",
        "name",
        "needs",
        "only_excludes",
        "persistent",
        "position",
        "reading",
        "resumed",
        "running",
        "servings",
        "tokens",
        "turns",
        "wakes_at",
        "watch",
    )

    def __init__(self, servings: Sequence[Serving], host: Host, reading: Reading | None) -> None:
        self.name = ", ".join(one.name for one in servings if one.is_named) or UNNAMED
        self.flags = Flags.of_row([serving.in_row for serving in servings])
        self.needs, self.dense = self.flags.needs, self.flags.dense
        self.reading = Reading() if reading is None else reading
        self.servings, is_only = servings, len(servings) == 1
        self.turns = tuple(Turn(one, self.reading, host, is_only=is_only) for one in servings)
        #: The turn of a row with no other, if it is plain, as in nearly every row.
        self._only = self._find_only()
        self.edits = any(turn.edits for turn in self.turns)
        #: The phases that turns follow, each once.
        self._phases: tuple[Phases, ...] = ()
        #: For each of them the number of resumed tokens that are prompt to it.
        self._skipped: tuple[int, ...] = ()
        #: The *always* edits that were declared along a draft, while it is walked.
        self._always: _Always = ()
        #: Whether persistent edits of turns in a phase are edits of the step for now, as
        #: ``apart`` of :meth:`ask_turns` says.
        self._apart = False
        self.resumed, self.only_excludes = host.resumed, host.returns_sampling_mask
        self.persistent: CompiledEdits | None = None
        self.position = self.wakes_at = 0
        self.exact = True
        self.running: Turn | None = None
        self.watch: frozenset[int] | None = None
        self.leaves_one = False
        self.tokens = array("q")

    def _find_only(self) -> Turn | None:
        return self.turns[0] if len(self.turns) == 1 and self.turns[0].is_plain else None

    @property
    def params(self) -> list[Any]:
        """The parameters of each turn."""
        return [turn.request.params for turn in self.turns]

    def read_of_prompt(self, length: int) -> int:
        """Return how many tokens of a prompt of this length the starts of all turns read.

        Finding the phase of a turn reads the whole prompt.
        """
        return sum(
            length
            if turn.request.phase is not None
            else turn.processor.read_of_prompt(turn.request.params, length)
            for turn in self.turns
            if turn.flags.reads_prompt
        )

    def begin(self, position: int) -> None:
        """Start the processors, after their views show the prompt.

        Args:
            position: Number of generated tokens.
        """
        self.position, self._apart = position, False
        self._follow_phases()
        for turn in self.turns:
            self.running = turn
            turn.request.see(position, self.tokens, exact=True)
            turn.start()
        self.running = None

    def _follow_phases(self) -> None:
        """Begin to follow the phases of turns: one object for all with equal keys."""
        followed: dict[tuple[object, int], Phases] = {}
        for turn in self.turns:
            phase, request = turn.request.phase, turn.request
            if phase is not None:
                key = phase.key, request.skipped
                if key not in followed:
                    followed[key] = phase.follow(request.prompt_ids)
                request.phases = followed[key]
        self._phases = (*followed.values(),)
        self._skipped = tuple(skipped for _, skipped in followed)

    def fork_turns(self) -> None:
        """Give this list, a shallow copy of another, turns and phases of its own."""
        self.reading = Reading()
        self.turns = tuple(turn.fork(self.reading) for turn in self.turns)
        self._only = self._find_only()
        self._put_phases(tuple(map(copy, self._phases)))

    def _feed(self, token_ids: Sequence[int]) -> None:
        """Feed the turns the given tokens, which the caller has put at the end of ``tokens``."""
        if self._phases:
            first = len(self.tokens) - len(token_ids)
            for phases, skipped in zip(self._phases, self._skipped, strict=True):
                phases.read(token_ids[skipped - first :] if skipped > first else token_ids)
        position, tokens, exact = self.position, self.tokens, self.exact
        for turn in self.turns:
            self.running = turn
            turn.advance(token_ids, position, tokens, exact=exact)
        self.running = None

    # A draft

    @property
    def states(self) -> States:
        """States of the processors after the tokens fed so far."""
        return tuple(turn.request.state for turn in self.turns), self._phases, self._always

    def put(self, states: States, position: int) -> None:
        """Go to a node of a draft, or back to the answer.

        Args:
            states: :attr:`states` at that node.
            position: Number of generated tokens there, with the drafted ones of the path; the
                caller has made ``tokens`` end with these.
        """
        known, phases, self._always = states
        self.position = position
        for turn, state in zip(self.turns, known, strict=True):
            turn.request.state = state
        if phases is not self._phases:
            self._put_phases(phases)
        for turn in self.turns:
            turn.request.see(position, self.tokens, exact=self.exact)

    def fork_states(self) -> None:
        """Go on with copies of :attr:`states`, which are advanced and thrown away."""
        for turn in self.turns:
            self.running = turn
            turn.request.state = turn.fork_state()
        self.running = None
        if self._phases:
            self._put_phases(tuple(map(copy, self._phases)))

    def draft(self, token_id: int, position: int) -> None:
        """Feed a drafted token.

        Args:
            token_id: The token.
            position: Number of generated tokens with it, drafted ones included.
        """
        self.position = position
        self.tokens.append(token_id)
        self._feed((token_id,))

    def may_switch(self, token_ids: Sequence[int]) -> bool:
        """Tell whether drafted tokens may open or close the phase of a turn."""
        return any(
            not (phases.is_settled and phases.telling.isdisjoint(token_ids))
            for phases in self._phases
        )

    def _put_phases(self, phases: tuple[Phases, ...]) -> None:
        replaced = dict(zip(map(id, self._phases), phases, strict=True))
        self._phases = phases
        for turn in self.turns:
            if turn.request.phases is not None:
                turn.request.phases = replaced[id(turn.request.phases)]

    # Each step

    def ask_early(self, vocab_size: int) -> None:
        """Ask for the edits of the first step, so that the step does not wait for them.

        Args:
            vocab_size: Number of logits in a row of the model.
        """
        for turn in self.turns:
            request = turn.request
            request.see(self.position, self.tokens, exact=True)
            if turn.edits and not request.is_closed:
                self.running = turn
                recording = turn.ask_early(vocab_size)
                if turn.needs is _NONE:
                    recording.fold_standing()
                    recording.hold_until(NEVER)
                precompile(recording)
        self.running = None

    def ask_turns(self, vocab_size: int, width: int, *, apart: bool) -> Recording:
        """Ask the turns that are awake, and return the edits of only this step.

        What turns say of later steps becomes persistent edits, ``wakes_at`` and ``watch``.

        Args:
            vocab_size: Number of logits in a row of the model.
            width: The most tokens that this step brings.
            apart: Whether phases may open or close within the step, at drafted tokens. Persistent
                edits of turns in a phase are then edits of the step.

        Raises:
            ProcessorFault: A processor failed, or edited where it may only exclude.
        """
        turn = self._only
        if turn is None:
            return self._ask_each(vocab_size, width, apart=apart)
        turn.request.see(self.position, self.tokens, exact=self.exact)
        if turn.sleeps_at(self.position, width):
            self.watch, self.leaves_one, self.wakes_at = None, False, turn.wake
            return Recording(vocab_size)
        self.running, before = turn, turn.persistent
        step = recording = turn.ask(vocab_size, only_excludes=self.only_excludes)
        if turn.keep(recording, width):
            step = Recording(vocab_size)
            step.end = recording.end
        self.running = None
        if turn.persistent is not before:
            self._collect()
        if step.conditional:
            self._decide(turn, step, on_host=self.reading.copied is not None, drafted=False)
        self.watch, self.leaves_one, self.wakes_at = None, recording.leaves_one, turn.wake
        return step

    def _ask_each(self, vocab_size: int, width: int, *, apart: bool) -> Recording:
        """Ask the turns of any row, as :meth:`ask_turns`."""
        changed, self._apart = apart is not self._apart, apart
        position, tokens, exact = self.position, self.tokens, self.exact
        only_excludes = self.only_excludes
        own: list[tuple[Turn, Recording]] = []
        end: End | None = None
        leaves_one = False
        for turn in self.turns:
            if not turn.edits:
                continue
            request = turn.request
            request.see(position, tokens, exact=exact)
            closed = request.phase is not None and request.is_closed
            if closed is not turn.was_closed:
                changed = turn.switch(closed=closed) or changed
            if closed:
                continue
            if not turn.sleeps_at(request.position, width):
                self.running, before = turn, turn.persistent
                recording = turn.ask(vocab_size, only_excludes=only_excludes)
                end = recording.end or end
                if turn.needs is _NONE:
                    turn.rest_on(recording)
                elif not turn.keep(recording, width):
                    own.append((turn, recording))
                else:
                    leaves_one = leaves_one or recording.leaves_one
                changed = changed or turn.persistent is not before
            if apart and request.phase is not None:
                own += [(turn, one) for one in turn.persistent]
        self.running = None
        if changed:
            self._collect()
        step = self._joined(own, vocab_size)
        step.end = step.end or end
        self.leaves_one = leaves_one or step.leaves_one
        self._sleep()
        return step

    def ask_drafted(self, vocab_size: int, *, apart: bool) -> Recording:
        """Return the edits of a node of a draft, except the persistent ones.

        Edits that hold at later steps count as edits of the node too: each node is asked.

        Args:
            vocab_size: Number of logits in a row of the model.
            apart: As for :meth:`ask_turns`.

        Raises:
            ProcessorFault: As :meth:`ask_turns`; or an *always* edit that cannot last.
        """
        only_excludes = self.only_excludes
        own: list[tuple[Turn, Recording]] = []
        for place, turn in enumerate(self.turns):
            request = turn.request
            if not turn.edits or (request.phase is not None and request.is_closed):
                continue
            if not turn.sleeps_at(request.position):
                self.running = turn
                recording = turn.ask(vocab_size, only_excludes=only_excludes)
                own.append((turn, recording))
                if recording.standing is not None:
                    recording.standing.check_lasting()
                    self._always = (*self._always, (place, recording.standing))
                    recording.standing = None
            if apart and request.phase is not None:
                own += [(turn, one) for one in turn.persistent]
        for place, recording in self._always:
            turn = self.turns[place]
            if not turn.request.is_closed:
                own.append((turn, recording))
        self.running = None
        step = self._joined(own, vocab_size, drafted=True)
        self.leaves_one = step.leaves_one
        return step

    def _joined(
        self, own: Sequence[tuple[Turn, Recording]], vocab_size: int, *, drafted: bool = False
    ) -> Recording:
        """Join the edits of several turns, and decide what depends on the logits.

        Args:
            own: The edits that turns declared for this step.
            vocab_size: Number of logits in a row of the model.
            drafted: Whether the step is a node of a draft, so that *always* edits that the device
                decides about are edits of only this node.
        """
        if len(own) == 1 and not (self._apart or own[0][1].conditional):  # nearly always
            return own[0][1]
        asking = [turn for turn, recording in own if recording.conditional]
        if len(asking) > 1:  # the device decides one question of a row
            for turn, recording in own:
                if recording.conditional:
                    self._decide(turn, recording, on_host=True, drafted=drafted)
        if len(own) == 1 and not self._apart:
            step = own[0][1]
        else:
            step = Recording(vocab_size)
            for _, recording in own:
                step.add(recording)
                step.end = recording.end or step.end
        if len(asking) == 1:
            self._decide(asking[0], step, on_host=self.reading.copied is not None, drafted=drafted)
        return step

    def _decide(self, turn: Turn, recording: Recording, *, on_host: bool, drafted: bool) -> None:
        self.running = turn
        decide(recording, self.persistent, on_host=on_host)
        self.running = None
        if recording.standing is not None and drafted:
            recording.fold_standing()
        elif recording.standing is not None:
            turn.add_always(recording)
            self._collect()

    def _sleep(self) -> None:
        """Set ``wakes_at`` and ``watch`` by how long each turn sleeps."""
        position, watches = self.position, False
        wake = position + 1 if self.dense else NEVER
        for turn in self.turns:
            if turn.edits:
                at, turn_watches = turn.sleeps(position)
                wake = min(wake, at)
                watches = watches or turn_watches
        self.watch = None
        if watches and all(phases.is_settled for phases in self._phases):
            telling = [phases.telling for phases in self._phases]
            self.watch = telling[0] if len(telling) == 1 else frozenset().union(*telling)
        elif watches:
            wake = position + 1
        self.wakes_at = wake

    def wholes(self, custom_params: Any) -> list[Whole]:
        """Return the turns that compute on the whole row, in order.

        Args:
            custom_params: As SGLang has them.
        """
        return [turn.whole(custom_params) for turn in self.turns if turn.dense]

    def _collect(self) -> None:
        """Gather the persistent edits of all turns whose phase is open."""
        apart, turns = self._apart, self.turns
        held = [t for t in turns if not (t.was_closed or (apart and t.request.phase is not None))]
        self._set_persistent([one for turn in held for one in turn.persistent])

    @abstractmethod
    def _set_persistent(self, parts: Sequence[Recording]) -> None:
        """Replace the persistent edits by others, compiled as one."""
