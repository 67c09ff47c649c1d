"""A turn: one processor in a row. Turns are what sleeps; see :class:`Turn`."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from sglang_lp._engine.turns.view import View
from sglang_lp.edits import NEVER
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import ProcessorFault
from sglang_lp.faults import as_fault, blame
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from sglang_lp._engine.apply.reading import Reading
    from sglang_lp._engine.history.host import Host
    from sglang_lp.errors import SglangLpError
    from sglang_lp.links import Serving

#: Looked up once and not for each row: a member of an enumeration is a slow attribute.
_NONE = History.NONE
_NO_ADVANCE = LogitProcessor.advance

#: Most tokens that may come before a turn in a phase reads them, so that no step reads more. They
#: are read at once, as none of them is part of a delimiter (``benchmarks.cost.phases``).
LONGEST_SLEEP = 1_024

_BIASED = (
    "return_sampling_mask needs processors that only ban, allow or force tokens, and this "
    "processor edited otherwise; its class sets exclusion_only = True: remove that"
)


class Whole(NamedTuple):
    """A turn that computes on the whole row.

    Attributes:
        turn: The turn.
        request: The request as its processor sees it.
        custom_params: The parameters as the processor reads them.
    """

    turn: Turn
    request: View
    custom_params: Any


class Turn:
    """One processor in a row, with its view of the request.

    A turn is *asked* for its edits at a step, unless it sleeps: until ``wake``, or while its phase
    is closed. *Persistent* edits hold longer than a step: *always* edits, from ``Edits.always``, to
    the end of the answer, and *held* edits, from ``Edits.hold_until``, until ``wake``. They apply
    while the phase is open.

    Attributes:
        processor: The processor.
        name: Its name in messages to the client.
        own_name: Its name in the log.
        flags: Its flags in its phase.
        dense: Whether it computes whole rows.
        edits: Whether it is asked for edits.
        needs: What the processor must know of the tokens of its view.
        request: The request as the processor sees it. Positions of a turn count the tokens of this
            view.
        is_named: Whether messages to the client name the processor and say why it failed.
        asked: Position at which the turn was asked last. There it is asked again if SGLang repeats
            the step after a retraction.
        wake: Position before which the turn is not asked.
        was_closed: Whether the phase was closed at the latest step.
        first: The edits of the first step, if it was asked early.
        persistent: The persistent edits, none of them empty.
    """

    __slots__ = (
        "_advances",
        "_always",
        "_given",
        "_held",
        "_reads_own",
        "asked",
        "dense",
        "edits",
        "first",
        "flags",
        "is_named",
        "name",
        "needs",
        "own_name",
        "persistent",
        "processor",
        "request",
        "wake",
        "was_closed",
    )

    def __init__(self, serving: Serving, reading: Reading, host: Host, *, is_only: bool) -> None:
        self.processor = serving.processor
        self.is_named = serving.is_named
        flags, self.flags = serving.flags, serving.in_row
        self.name, self.own_name = serving.name, flags.name
        self.dense, self.edits, self.needs = flags.dense, not flags.dense, flags.needs
        #: Whether the processor follows the tokens, which most that edit in a phase do not.
        self._advances = getattr(serving.processor.advance, "__func__", None) is not _NO_ADVANCE
        self.request = View(
            serving,
            reading,
            may_lag=host.may_lag,
            tokenizer=host.tokenizer,
            sampling=getattr(host.request, "sampling_params", None),
        )
        #: The parameters as a class reads them that follows SGLang's contract; ``None`` to hand it
        #: the request's own ``custom_params``, which hold those of every turn.
        self._given: dict[str, Any] | None = None
        self._reads_own = flags.reads_request and (
            serving.is_link or not (is_only and serving.is_named)
        )
        self.forget()

    def __repr__(self) -> str:
        return f"<Turn {self.name}: asked at {self.asked}, wakes at {self.wake}>"

    @property
    def is_plain(self) -> bool:
        """Whether the turn sees the whole answer and is asked step by step."""
        return self.edits and self.needs is not _NONE and self.request.is_whole

    def sleeps_at(self, position: int, width: int = 1) -> bool:
        """Tell whether the turn is not asked at a position of its view.

        Args:
            position: The position.
            width: The most tokens that the step brings. Held edits that end within them are asked
                for anew.
        """
        if not self.asked < position < self.wake:
            return False
        return self._held is None or position + width <= self.wake

    def forget(self) -> None:
        """Forget everything that was said for a history."""
        self.asked = self.wake = 0
        self.was_closed = False
        self.first: Recording | None = None
        self.persistent: tuple[Recording, ...] = ()
        self._always: Recording | None = None
        self._held: Recording | None = None

    # The history

    def start(self) -> None:
        """Start the processor, after the view shows the prompt."""
        self.forget()
        request = self.request
        if self._reads_own:
            self._given = self.processor.plain(request.params)
        request.state = self.processor.start(request)

    def advance(
        self, token_ids: Sequence[int], position: int, tokens: Sequence[int], *, exact: bool
    ) -> None:
        """Pass new tokens on to the processor.

        Args:
            token_ids: The new tokens of the row.
            position: As for :meth:`View.see`, as ``exact``.
            tokens: As for :meth:`View.see`, the new tokens included.
            exact: As for :meth:`View.see`.
        """
        request = self.request
        known = request.position
        request.see(position, tokens, exact=exact)
        if not self._advances:
            return
        if not request.is_whole:
            if request.phase is not None:
                token_ids = request.output_ids[known : request.position]
            else:
                token_ids = token_ids[max(0, len(token_ids) - len(request.output_ids)) :]
            if not token_ids:
                return
        self.processor.advance(request, token_ids)

    def fork_state(self) -> Any:
        """Return a copy of the processor's state, to be advanced along a draft."""
        return self.processor.fork(self.request)

    def fork(self, reading: Reading) -> Turn:
        """Return a turn for another answer that has the same tokens so far."""
        turn = copy(self)
        turn.request = copy(self.request)
        turn.request.reading = reading
        if self.needs is not _NONE:
            turn.request.state = self.fork_state()
        return turn

    def rewind(self) -> None:
        """Prepare for a step that is repeated."""
        self.processor.rewind(self.request)

    # Edits

    def ask_early(self, vocab_size: int) -> Recording:
        """Ask for the edits of the first step before it; :meth:`ask` returns them once."""
        self.first = recording = Recording(vocab_size)
        self.processor.edit(self.request, recording)
        return recording

    def ask(self, vocab_size: int, *, only_excludes: bool) -> Recording:
        """Ask for the edits of a step.

        Args:
            vocab_size: Number of logits in a row.
            only_excludes: Whether the request asks for SGLang's ``return_sampling_mask``, so that
                edits may only exclude tokens.
        """
        recording = self.first
        if recording is None:
            recording = Recording(vocab_size)
            if self.needs is _NONE:
                with self.request.reading.closed():  # its edits may not depend on the step
                    self.processor.edit(self.request, recording)
            else:
                self.processor.edit(self.request, recording)
        self.first = None
        if recording.holds and recording.conditional:
            raise ProcessorFault("hold_until() is not for a step with force_if()")
        if recording.holds and recording.marked is not None:
            raise ProcessorFault("hold_until() is not for a step with mark()")
        if only_excludes and not (recording.only_excludes and self.request.reading.copied is None):
            raise ProcessorFault(_BIASED)
        return recording

    def foresee(self) -> Iterable[int]:
        """Return the tokens that the processor will force."""
        return () if self.request.is_closed else self.processor.foresee(self.request)

    # Sleep

    def switch(self, *, closed: bool) -> bool:
        """Note whether the phase is closed; return whether persistent edits begin or stop."""
        if closed is self.was_closed:
            return False
        self.was_closed = closed
        return bool(self.persistent)

    def rest_on(self, recording: Recording) -> None:
        """Keep edits to the end of the answer, and never ask again."""
        recording.fold_standing()
        self._always, self.wake = recording, NEVER
        self._gather()

    def keep(self, recording: Recording, width: int) -> bool:
        """Take over what a recording says of later steps, at the position that was asked.

        Args:
            recording: Its *always* edits are taken out.
            width: The most tokens that a step can bring. Edits have to hold for all of them, or
                they are edits of one step.

        Returns:
            Whether the recording is held, and so no edit of this step.
        """
        at = self.asked = self.request.position
        if recording.standing is not None:
            self.add_always(recording)
        wake, held = recording.wake, None
        if recording.holds and wake is not None:
            if at + width <= wake:
                held = recording
            else:
                wake = None
        self.wake = at + 1 if wake is None else wake
        if held is not self._held:
            self._held = held
            self._gather()
        return held is not None

    def add_always(self, recording: Recording) -> None:
        """Keep the *always* edits of a recording, and take them out of it.

        Raises:
            ProcessorFault: They cannot hold at every step.
        """
        standing, recording.standing = recording.standing, None
        if standing is None:
            return
        standing.check_lasting()
        if self._always is not None:
            standing.add(self._always)
        self._always = standing
        self._gather()

    def _gather(self) -> None:
        self.persistent = tuple(
            one for one in (self._always, self._held) if one is not None and not one.is_empty
        )

    def sleeps(self, position: int) -> tuple[int, bool]:
        """Return the position of the row at which the turn is asked next.

        Args:
            position: Of the row.

        Returns:
            The position; and whether the turn has to know before when its phase opens or closes.
        """
        request, wake = self.request, self.wake
        if request.is_whole:
            return wake, False
        left = wake - request.position
        if request.phase is None:
            return (NEVER if wake >= NEVER else position + left), False
        waits = left <= 0 and request.is_closed
        watches = waits or bool(self.persistent)
        if not watches and wake >= NEVER:
            return NEVER, False
        return position + (LONGEST_SLEEP if waits else min(left, LONGEST_SLEEP)), watches

    # Other parts of the contract

    def whole(self, custom_params: Any) -> Whole:
        """Return the processor's work on the whole row.

        Args:
            custom_params: As SGLang has them.
        """
        given = self._given
        if given is None:
            return Whole(self, self.request, custom_params)
        given["__req__"] = custom_params.get("__req__")
        return Whole(self, self.request, given)

    def compute(
        self, logits: torch.Tensor, requests: Sequence[View], custom_params: Sequence[Any]
    ) -> torch.Tensor:
        """Compute whole rows of this kind, as ``LogitProcessor.compute``."""
        return self.processor.compute(logits, requests, custom_params)

    def report(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        forced: Sequence[Sequence[int]],
    ) -> dict[str, Any]:
        """Return the processor's part of the report, see ``LogitProcessor.report``.

        Args:
            prompt_ids: Of the row, without resumed tokens.
            output_ids: Of the row, resumed tokens included.
            forced: Spans of forced positions of the row.
        """
        request, skipped = self.request, self.request.skipped
        if skipped:
            prompt_ids = [*prompt_ids, *output_ids[:skipped]]
            output_ids = output_ids[skipped:]
            forced = [(start - skipped, stop - skipped) for start, stop in forced]
        part = self.processor.report(request.params, prompt_ids, output_ids, forced)
        orjson.dumps({**part})  # a report that is no JSON is its class's fault
        return part

    def fault(self, error: BaseException, when: str) -> SglangLpError:
        """Return the error of the request whose processor raised; see :func:`as_fault`.

        Args:
            error: Raised by the processor.
            when: The moment, such as ``at token 3``.
        """
        failed = blame(self.own_name, error, is_named=self.is_named)
        return as_fault(self.own_name, when, failed)
