"""The row of a request in the batch: its turns, its history so far, and when it wakes.

The scheduler's gate makes rows, :class:`~sglang_lp._engine.history.arrivals.Arrivals` starts them,
and a step (:mod:`sglang_lp._engine.batch`) asks them for edits.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.compiled.edits import CompiledEdits
from sglang_lp._engine.history.clock import clock
from sglang_lp._engine.history.edit_log import EditLog
from sglang_lp._engine.history.lag import tolerates_lag
from sglang_lp._engine.history.row_state import RowState
from sglang_lp._engine.turns.turn_list import TurnList
from sglang_lp.edits import NEVER
from sglang_lp.edits.ids import Ids, converted_ids
from sglang_lp.edits.recording import Recording
from sglang_lp.faults import as_fault, from_signal
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp._engine.apply.reading import Reading
    from sglang_lp._engine.forms.slots import Formed
    from sglang_lp._engine.history.edit_log import EditRecorder
    from sglang_lp._engine.history.host import Host
    from sglang_lp._engine.turns.turn import Whole
    from sglang_lp.errors import SglangLpError
    from sglang_lp.links import Serving

#: Looked up once and not for each row: a member of an enumeration is a slow attribute.
_NONE, _TOKENS = History.NONE, History.TOKENS

_UNSTARTED, _WAITING, _RESUMING = RowState.UNSTARTED, RowState.WAITING, RowState.RESUMING
_ASKED, _RUNNING, _ENDED = RowState.ASKED, RowState.RUNNING, RowState.ENDED


class Row(TurnList):
    """Feeds the turns of a request its history, and keeps what its next steps need.

    The history is read from the host at each step. Counting calls of the sampler would be wrong:
    chunked prefill samples results that are dropped, and a retracted request runs again. The
    states of the processors are fed from that history, and can be rebuilt from it at any time.

    Transitions between the states of :class:`~sglang_lp._engine.history.row_state.RowState`, from
    any state but ENDED unless the table says more:

    =====================  ========================  ==============================================
    call                   to                        the caller guarantees
    =====================  ========================  ==============================================
    ``wait``               WAITING                   UNSTARTED, and no step yet
    ``start``              RUNNING, or RESUMING if   the host has its prompt; no step yet
                           tokens are resumed
    ``resume``             RUNNING once all are fed  started
    ``ask_early``          ASKED; RUNNING if the     RUNNING, no generated token, ``early``
                           processor raises
    ``accept_tokens``      RUNNING; ASKED stays at   the clock has reached ``wake``
                           the first position
    ``ask``                RUNNING                   ``accept_tokens`` returned true
    ``restart``            UNSTARTED                 nothing
    ``end``                ENDED                     nothing
    ``rewind``             the same                  the host dropped the token sampled last
    =====================  ========================  ==============================================

    ``wake`` is independent of the state: 0 if the row is awake, a reading of the clock if it
    sleeps, ``NEVER`` if it sleeps for good. A row that *watches* sleeps until ``wake`` or until one
    of the tokens of ``watch`` comes, which may open or close the phase of a turn.

    The persistent edits are all that turns keep while their phases are open, compiled as one.

    Attributes:
        host: The host of the request.
        source: The host's own request object (or a proxy of it), or ``None``.
        state: Whether the processors are started and fed.
        wake: Reading of the clock before which no step asks this row.
        step_compiled: Compiled edits of its last step. Nothing reads it: compiled edits are shared
            as long as they are referenced, and the next step often has equal ones.
        version: Changes whenever a cached plan that contains this row is stale.
        edit_log: What was edited and forced so far.
        recorder: Takes the edits of each step: the log, unless the host has another.
        joins_at: Position from which on the row may run by forms; ``NEVER`` for none, -1 if that
            has not been looked at yet.
        form: The parts of the row that forms run; ``None`` while the row is asked itself.
        is_scaled: Whether the edits of its last step multiplied all logits.
    """

    __slots__ = (
        "__weakref__",
        "_ids",
        "_output_ids",
        "_prompt_ids",
        "edit_log",
        "form",
        "host",
        "is_scaled",
        "joins_at",
        "recorder",
        "source",
        "state",
        "step_compiled",
        "version",
        "wake",
    )

    def __init__(
        self, servings: Sequence[Serving], host: Host, reading: Reading | None = None
    ) -> None:
        super().__init__(servings, host, reading)
        self.host = host
        self.source = host.request
        self.state = _UNSTARTED
        self.wake = 0
        self.edit_log = EditLog()
        self.recorder: EditRecorder = host.recorder_of(self.edit_log)
        self.form: Formed | None = None
        self.joins_at = -1
        self.is_scaled = False
        self.version = clock.next_version()
        self.step_compiled: CompiledEdits | None = None
        #: Converted now and not while a batch waits, once for all copies of a request.
        self._ids: list[Ids] = [ids for one in servings for ids in converted_ids(one.params)]
        self._prompt_ids: Sequence[int] = ()
        self._output_ids: Sequence[int] = ()

    def __repr__(self) -> str:
        if self.wake >= NEVER:
            sleep = "asleep for good" if self.watch is None else "asleep in its phase"
        else:
            left = self.wake - clock.now
            sleep = f"asleep for {left} tokens" if left > 0 else "awake"
        return f"<Row {self.name}: {self.state.value}, {len(self.tokens)} tokens fed, {sleep}>"

    # Start

    @property
    def started(self) -> bool:
        """Whether the processors have been started for the current history."""
        return self.state is not _UNSTARTED and self.state is not _WAITING

    @property
    def unread(self) -> bool:
        """Whether ``Arrivals`` has yet to read its prompt, or a part of it."""
        return self.state is _WAITING or self.state is _RESUMING

    def wait(self) -> None:
        """Leave the start to ``Arrivals``."""
        self.state = _WAITING

    def start(self) -> None:
        """Start the processors before the first step, so that the step does not wait for them.

        If the host replaces the prompt afterwards, they start again in a step.
        """
        source = self.source
        self._prompt_ids, self._output_ids = source.origin_input_ids, source.output_ids
        self.position = self.resumed
        self._start_turns()

    def resume(self, most: int = NEVER) -> int:
        """Feed the started processors the next of the resumed tokens.

        Args:
            most: Most tokens to feed in this call.

        Returns:
            Number of resumed tokens that are still to be fed.
        """
        fed, tokens = len(self.tokens), len(self._prompt_ids)
        since = tokens - self.resumed + fed
        new = self._prompt_ids[since : min(tokens, since + most)]
        if len(new):
            self.tokens.extend(new)
            self._feed(new)
        left = max(0, self.resumed - len(self.tokens))
        if not left and self.state is _RESUMING:
            self.state = _RUNNING
        return left

    def split_prompt(self, prompt_ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the tokens of a prompt without the resumed ones at its end, and these."""
        if not self.resumed:
            return prompt_ids, ()
        end = len(prompt_ids) - self.resumed
        return prompt_ids[:end], prompt_ids[end:]

    def restart(self) -> None:
        """Let the next step start the processors with new states."""
        if self.state is not _ENDED:
            self.state = _UNSTARTED

    def _restart(self) -> None:
        """Start the processors, and feed them the resumed tokens."""
        self._start_turns()
        if self.resumed:
            self.resume()

    def _start_turns(self) -> None:
        self.tokens = array("q")
        self._show_prompt()
        self.begin(self.position)
        self._set_persistent(())
        self.state = _RESUMING if self.resumed else _RUNNING

    def fork(self, host: Host, output_ids: Sequence[int]) -> Row:
        """Return a row for another answer that has the same tokens so far.

        Args:
            host: Host of the other answer.
            output_ids: The generated tokens that this host will return.
        """
        self.leave_form()
        row = copy(self)
        row.host, row._output_ids = host, output_ids  # noqa: SLF001 - a copy of itself
        row.tokens = self.tokens[:]
        row.edit_log = copy(self.edit_log)
        row.recorder = row.edit_log if self.recorder is self.edit_log else copy(self.recorder)
        row.joins_at = -1
        row.fork_turns()
        row._show_prompt()  # noqa: SLF001 - as above
        return row

    # Each step

    def accept_tokens(self) -> bool:
        """Read the history from the host, and feed the processors each new token once.

        Returns:
            Whether the row can be asked at this step. False for an ended row, and, unless no
            processor needs history, in two cases:

            - the result of the step will be dropped: a chunk of a prefill before the last chunk, or
              a request that has just finished;
            - the newest token is missing, and a processor does not tolerate that.
        """
        needs = self.needs
        prompt_ids, output_ids, pending, position, counts = self.host.look(tokens=needs is _TOKENS)
        seen, resumed = len(output_ids), self.resumed
        total = seen + len(pending)
        self.position = position + resumed
        self.exact = exact = position == total
        if needs is not _NONE:
            if not counts:
                return False
            if not exact and not tolerates_lag(self.turns, self.host):
                return False
        tokens = self.tokens
        fed = len(tokens) - resumed
        if prompt_ids is not self._prompt_ids or output_ids is not self._output_ids:
            self._adopt(prompt_ids, output_ids)
        state = self.state
        if fed > 0 and (
            fed > total
            or (output_ids[fed - 1] if fed <= seen else pending[fed - seen - 1]) != tokens[-1]
        ):
            state = _UNSTARTED  # the history was rewritten
        if state is not _RUNNING and (state is not _ASKED or position):
            if self.state is _ENDED:
                return False
            fed = 0
            self._restart()
            tokens = self.tokens
        if total > fed:
            if total == fed + 1:  # nearly always: no slice of an array
                new = [output_ids[fed] if fed < seen else pending[fed - seen]]
                tokens.append(new[0])
            else:
                new = [*output_ids[fed:seen], *pending[max(0, fed - seen) :]]
                tokens.extend(new)
            self.edit_log.resolve(tokens)
            self._feed(new)
        return True

    def _adopt(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Take over new sequence objects; the state stays only if they extend the old ones."""
        if self.started and self.state is not _ENDED:
            known = self.tokens[self.resumed :]
            if not (
                [*output_ids[: len(known)]] == [*known[: len(output_ids)]]
                and same_tokens(prompt_ids, self._prompt_ids)
            ):
                self.state = _UNSTARTED
        self._prompt_ids, self._output_ids = prompt_ids, output_ids
        self._show_prompt()

    def _show_prompt(self) -> None:
        """Show the processors the prompt."""
        prompt_ids, _ = self.split_prompt(self._prompt_ids)
        for turn in self.turns:
            turn.request.show(self._prompt_ids, prompt_ids, self.tokens)

    @property
    def output_ids(self) -> Sequence[int]:
        """The generated tokens that the host has, which grow with the request."""
        return self._output_ids

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Tokens of the prompt without the resumed tokens."""
        return self.split_prompt(self._prompt_ids)[0]

    def ask_early(self, vocab_size: int) -> None:
        try:
            super().ask_early(vocab_size)
        except BaseException as error:
            if from_signal(error):
                raise
            self._restart()  # the step asks again, and handles what it raises
        else:
            self.state = _ASKED

    def ask(self, vocab_size: int, now: int, width: int = 1, *, apart: bool = False) -> Recording:
        """Ask the turns for the edits of this step, and let the row sleep as long as they do.

        Args:
            vocab_size: Number of logits in a row of the model.
            now: Reading of the clock at this step.
            width: As for :meth:`ask_turns`.
            apart: As for :meth:`ask_turns`.

        Raises:
            ProcessorFault: As :meth:`ask_turns`.
        """
        if self.state is _ASKED:
            self._run_asked(vocab_size)
        step = self.ask_turns(vocab_size, width, apart=apart)
        wake, next_position = self.wakes_at, self.position + 1
        if wake <= next_position:
            self.wake = 0
        else:
            self.wake = NEVER if wake >= NEVER else now + wake - self.position
        return step

    def _run_asked(self, vocab_size: int) -> None:
        """Begin the first step, whose edits are known if they were for this vocabulary."""
        self.state = _RUNNING
        if any(one.first and one.first.vocab_size != vocab_size for one in self.turns):
            self._restart()

    def wholes_now(self, custom_params: Any) -> list[Whole]:
        """Return :meth:`wholes` at a node of a draft, for after the walk of the draft.

        Each has a view of its own: that of the row moves on with the walk.
        """
        tokens = self.tokens[:]
        found = []
        for whole in self.wholes(custom_params):
            seen = copy(whole.request)
            seen.show(self._prompt_ids, self.prompt_ids, tokens)
            seen.see(self.position, tokens, exact=True)
            found.append(whole._replace(request=seen))
        return found

    def rewind(self) -> None:
        """Ask again at the next step: the host dropped the token that was sampled last.

        The row may have gone to sleep at a position that is now sampled once more.
        """
        if self.state is _ENDED or self.needs is _NONE:
            return
        self.leave_form()
        self.wake = 0
        self.version = clock.next_version()
        if self.state is _RUNNING:
            for turn in self.turns:
                self.running = turn
                turn.rewind()
            self.running = None

    def leave_form(self) -> None:
        """Ask the processors themselves from the next step on, if the row runs by forms."""
        formed, self.form = self.form, None
        if formed is not None:
            formed.leave(self.edit_log)
            self.wake = 0

    # Persistent edits

    def _set_persistent(self, parts: Sequence[Recording]) -> None:
        persistent = None
        if parts:
            recording = parts[0]
            if len(parts) > 1:
                recording = Recording(recording.vocab_size)
                for one in parts:
                    recording.add(one)
            persistent = CompiledEdits.of(recording)
        if persistent is not self.persistent:
            self.recorder.set_persistent(
                self.position,
                exist=persistent is not None,
                forced=any(one.leaves_one for one in parts),
            )
            self.persistent = persistent
            self.version = clock.next_version()

    # End

    def end(self, error: SglangLpError) -> None:
        """End the request with an error; the rest of the batch goes on.

        Args:
            error: Becomes the message.

        Raises:
            SglangLpError: ``error`` itself, outside a server.
        """
        self.leave_form()
        self.wake, self.watch = NEVER, None
        self.state = _ENDED
        for turn in self.turns:
            turn.forget()
        self._set_persistent(())
        self.host.end(error)

    def fault(
        self, error: BaseException, position: int | None = None, when: str | None = None
    ) -> SglangLpError:
        """Convert an exception to the error of its request.

        Args:
            error: Raised while the row was edited. It names the processor that was running; if
                none was, all of them.
            position: Position along a draft; ``None`` for the position of the request.
            when: The moment, if it is no step.
        """
        at = self.position if position is None else position
        when = when or f"at token {max(0, at - self.resumed)}"
        turn, self.running = self.running, None
        return as_fault(self.name, when, error) if turn is None else turn.fault(error, when)


def same_tokens(one: Sequence[int], other: Sequence[int]) -> bool:
    """Tell whether two prompts, perhaps of different types, have the same tokens."""
    return one == other if type(one) is type(other) else [*one] == [*other]
