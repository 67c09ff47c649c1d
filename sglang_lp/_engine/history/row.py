"""The row of a request in the batch: its processor, its history so far, and when it wakes.

The scheduler's gate makes rows, :class:`~sglang_lp._engine.history.arrivals.Arrivals` starts them,
and a step (:mod:`sglang_lp._engine.batch`) asks them for edits.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from sglang_lp._engine.apply.plan_builder import precompile
from sglang_lp._engine.apply.reading import ServedRequest
from sglang_lp._engine.compiled.edits import CompiledEdits
from sglang_lp._engine.history.clock import clock
from sglang_lp._engine.history.edit_log import EditLog
from sglang_lp._engine.history.lag import tolerates_lag
from sglang_lp._engine.history.row_state import RowState
from sglang_lp.edits import NEVER
from sglang_lp.edits.ids import Ids, converted_ids
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import ProcessorFault, SglangLpError
from sglang_lp.faults import as_fault, from_signal
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp._engine.history.host import Host
    from sglang_lp.params import Parameters
    from sglang_lp.processor import LogitProcessor

#: Looked up once and not for each row: a member of an enumeration is a slow attribute.
_NONE, _TOKENS = History.NONE, History.TOKENS

_BIASED = (
    "return_sampling_mask needs processors that only ban, allow or force tokens, and this "
    "processor edited otherwise; its class sets exclusion_only = True: remove that"
)


_UNSTARTED, _WAITING, _RESUMING = RowState.UNSTARTED, RowState.WAITING, RowState.RESUMING
_ASKED, _RUNNING, _ENDED = RowState.ASKED, RowState.RUNNING, RowState.ENDED


class Row:
    """Feeds a processor the history of its request, and keeps what its next steps need.

    The history is read from the host at each step. Counting calls of the sampler would be wrong:
    chunked prefill samples results that are dropped, and a retracted request runs again. The
    processor's state is fed from that history, and can be rebuilt from it at any time.

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
    sleeps, ``NEVER`` if it sleeps for good.

    Persistent edits have two parts, which are compiled as one: *always* edits, from
    ``Edits.always``, and *held* edits, from ``Edits.hold_until``, which a later ``edit`` replaces.

    Attributes:
        processor: Serves the request.
        name: Name of the processor, read once: naming a fault must not fail.
        needs: What the processor must know of the tokens.
        dense: Whether it computes whole rows, or runs processors that do.
        request: The request as the processor sees it.
        host: The host of the request.
        source: The host's own request object (or a proxy of it), or ``None``.
        resumed: Number of tokens at the end of the prompt that the processor treats as generated.
            Positions count these as well.
        state: Whether the processor is started and fed.
        wake: Reading of the clock before which no step asks this row.
        tokens: Generated tokens that were fed, oldest first.
        persistent: Compiled edits that apply at every step, or ``None``.
        held: The held edits among them, or ``None``.
        step_compiled: Compiled edits of its last step, kept so that the next step finds them.
        version: Changes whenever a cached plan that contains this row is stale.
        edit_log: What was edited and forced so far.
        leaves_one: Whether the edits of its last step left one token only.
        is_scaled: Whether the edits of its last step multiplied all logits.
    """

    __slots__ = (
        "__weakref__",
        "_always",
        "_first",
        "_ids",
        "_output_ids",
        "_prompt_ids",
        "dense",
        "edit_log",
        "held",
        "host",
        "is_scaled",
        "leaves_one",
        "name",
        "needs",
        "persistent",
        "processor",
        "request",
        "resumed",
        "source",
        "state",
        "step_compiled",
        "tokens",
        "version",
        "wake",
    )

    def __init__(self, processor: LogitProcessor, params: Parameters | None, host: Host) -> None:
        self.processor = processor
        self.name = str(processor.name)
        self.needs = processor.needs
        self.dense = processor.dense
        self.request = ServedRequest(
            params,
            may_lag=host.may_lag,
            tokenizer=host.tokenizer,
            sampling=getattr(host.request, "sampling_params", None),
        )
        self.host = host
        self.source = host.request
        self.resumed = host.resumed
        self.state = _UNSTARTED
        self.wake = 0
        self.edit_log = EditLog()
        self.leaves_one = self.is_scaled = False
        self.tokens = array("q")
        self.persistent: CompiledEdits | None = None
        self.version = clock.next_version()
        self.held: Recording | None = None
        self.step_compiled: CompiledEdits | None = None
        self._always: Recording | None = None
        #: The edits of the first step, while ASKED.
        self._first: Recording | None = None
        #: Converted now and not while a batch waits, once for all copies of a request.
        self._ids: list[Ids] = converted_ids(params)
        self._prompt_ids: Sequence[int] = ()
        self._output_ids: Sequence[int] = ()

    def __repr__(self) -> str:
        if self.wake >= NEVER:
            sleep = "asleep for good"
        else:
            left = self.wake - clock.now
            sleep = f"asleep for {left} tokens" if left > 0 else "awake"
        return f"<Row {self.name}: {self.state.value}, {len(self.tokens)} tokens fed, {sleep}>"

    # Start

    @property
    def started(self) -> bool:
        """Whether the processor has been started for the current history."""
        return self.state is not _UNSTARTED and self.state is not _WAITING

    @property
    def unread(self) -> bool:
        """Whether ``Arrivals`` has yet to read its prompt, or a part of it."""
        return self.state is _WAITING or self.state is _RESUMING

    def wait(self) -> None:
        """Leave the start to ``Arrivals``."""
        self.state = _WAITING

    def start(self) -> None:
        """Start the processor before the first step, so that the step does not wait for it.

        If the host replaces the prompt afterwards, the processor starts again in a step.
        """
        source = self.source
        self._prompt_ids, self._output_ids = source.origin_input_ids, source.output_ids
        self.request.position = self.resumed
        self._start_processor()

    def resume(self, most: int = NEVER) -> int:
        """Feed a started processor tokens that it resumes.

        Args:
            most: Most tokens to feed.

        Returns:
            Number of tokens that are left.
        """
        fed, tokens = len(self.tokens), len(self._prompt_ids)
        since = tokens - self.resumed + fed
        new = self._prompt_ids[since : min(tokens, since + most)]
        if len(new):
            self.tokens.extend(new)
            self.processor.advance(self.request, new)
        left = max(0, self.resumed - len(self.tokens))
        if not left and self.state is _RESUMING:
            self.state = _RUNNING
        return left

    def split_prompt(self, prompt_ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the tokens of a prompt that the processor sees as prompt, and the resumed ones."""
        if not self.resumed:
            return prompt_ids, ()
        end = len(prompt_ids) - self.resumed
        return prompt_ids[:end], prompt_ids[end:]

    def restart(self) -> None:
        """Let the next step start the processor with a new state."""
        if self.state is not _ENDED:
            self.state = _UNSTARTED

    def _restart(self) -> None:
        """Start the processor, and feed it the resumed tokens."""
        self._start_processor()
        if self.resumed:
            self.resume()

    def _start_processor(self) -> None:
        request = self.request
        self._show_prompt()
        self.tokens = request.output_ids = array("q")
        self._first = None
        self._set_persistent(None, None)
        request.state = self.processor.start(request)
        self.state = _RESUMING if self.resumed else _RUNNING

    def fork(self, host: Host, output_ids: Sequence[int]) -> Row:
        """Return a row for another answer that has the same tokens so far.

        Args:
            host: Host of the other answer.
            output_ids: The generated tokens that this host will return.
        """
        row = copy(self)
        row.host, row._output_ids = host, output_ids  # noqa: SLF001 - a copy of itself
        row.request = request = copy(self.request)
        row.tokens = request.output_ids = self.tokens[:]
        row.edit_log = copy(self.edit_log)
        if self.needs is not _NONE:
            request.state = self.processor.fork(request)
        return row

    # Each step

    def accept_tokens(self) -> bool:
        """Read the history from the host, and feed the processor each new token once.

        Returns:
            Whether the processor can edit this step. False in two cases, unless it needs no
            history:

            - the result of the step will be dropped: a chunk of a prefill before the last chunk, or
              a request that has just finished;
            - the newest token is missing, and the processor does not tolerate that.
        """
        needs, request = self.needs, self.request
        prompt_ids, output_ids, pending, position, counts = self.host.look(tokens=needs is _TOKENS)
        seen, resumed = len(output_ids), self.resumed
        total = seen + len(pending)
        request.position = position + resumed
        request.exact = exact = position == total
        if needs is not _NONE:
            if not counts:
                return False
            if not exact and not tolerates_lag(self.processor, self.host):
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
            self.processor.advance(request, new)
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
        """Show the processor the prompt."""
        self.request.full_prompt_ids = self._prompt_ids
        self.request.prompt_ids, _ = self.split_prompt(self._prompt_ids)

    def ask_early(self, vocab_size: int) -> None:
        """Ask for the edits of the first step, so that the step does not wait for them.

        Args:
            vocab_size: Number of logits in a row of the model.
        """
        recording = Recording(vocab_size)
        try:
            self.processor.edit(self.request, recording)
            if self.needs is _NONE:
                recording.fold_standing()
                recording.hold_until(NEVER)
            precompile(recording)
        except BaseException as error:
            if from_signal(error):
                raise
            self._restart()  # the step asks again, and handles what it raises
        else:
            self._first = recording
            self.state = _ASKED

    def ask(self, vocab_size: int) -> Recording:
        """Return the edits of this step.

        Raises:
            ProcessorFault: They exclude a sampling mask that the request asks for.
            BaseException: Raised by the processor.
        """
        recording = self._first
        if recording is not None:
            self._first = None
            self.state = _RUNNING
            if recording.vocab_size != vocab_size:
                self._restart()
                recording = None
        if recording is None:
            recording = Recording(vocab_size)
            self.processor.edit(self.request, recording)
        if self.host.returns_sampling_mask and not (
            recording.only_excludes and self.request.copied is None
        ):
            raise ProcessorFault(_BIASED)
        return recording

    def rewind(self) -> None:
        """Ask again at the next step: the host dropped the token that was sampled last.

        The row may have gone to sleep at a position that is now sampled once more.
        """
        if self.state is _ENDED or self.needs is _NONE:
            return
        self.wake = 0
        self.version = clock.next_version()
        if self.state is _RUNNING:
            self.processor.rewind(self.request)

    # Persistent edits

    def rest_on(self, recording: Recording) -> None:
        """Apply these edits at every step, and never ask the processor again."""
        self.wake = NEVER
        self._set_persistent(recording, None)

    def add_always(self, recording: Recording) -> None:
        """Apply these edits at every step, together with the other persistent edits."""
        if self._always is not None:
            recording.add(self._always)
        self._set_persistent(recording, self.held)

    def set_held(self, recording: Recording | None) -> None:
        """Replace the held edits."""
        self._set_persistent(self._always, recording)

    def _set_persistent(self, always: Recording | None, held: Recording | None) -> None:
        self._always, self.held = always, held
        parts = [one for one in (always, held) if one is not None and not one.is_empty]
        persistent = None
        if parts:
            recording = parts[0]
            if len(parts) > 1:
                recording = Recording(recording.vocab_size)
                for one in parts:
                    recording.add(one)
            persistent = CompiledEdits.of(recording)
        if persistent is not self.persistent:
            self.edit_log.set_persistent(
                self.request.position,
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
        self.wake = NEVER
        self.state = _ENDED
        self._first = None
        self._set_persistent(None, None)
        self.host.end(error)

    def fault(self, error: BaseException, position: int | None = None) -> SglangLpError:
        """Convert an exception of the processor to the error of its request.

        Args:
            error: Raised by the processor; see :func:`~sglang_lp.faults.as_fault`.
            position: Position along a draft; ``None`` for the position of the request.
        """
        at = self.request.position if position is None else position
        return as_fault(self.name, f"at token {max(0, at - self.resumed)}", error)


def same_tokens(one: Sequence[int], other: Sequence[int]) -> bool:
    """Tell whether two prompts, perhaps of different types, have the same tokens."""
    return one == other if type(one) is type(other) else [*one] == [*other]
