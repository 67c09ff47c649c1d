"""A processor that runs in one phase of an answer, and sleeps in the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, overload

from sglang_lp.builtins.link import LinkRequest
from sglang_lp.builtins.thinking.progress import Progress
from sglang_lp.edits import NEVER
from sglang_lp.processor import LogitProcessor, Recording
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.finder import Finder
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: Most tokens that may come before a sleeping request reads them.
_LONGEST_SLEEP = 128


class _PhaseTokens(Sequence[int]):
    """The tokens of one phase out of all tokens of an answer, without a copy.

    Args:
        whole: All tokens.
        spans: The phase: for each of its parts the first position, and the number of tokens of the
            parts before it.
        length: Number of tokens of the phase.
    """

    __slots__ = ("_length", "_spans", "_whole")

    def __init__(
        self, whole: Sequence[int], spans: tuple[tuple[int, int], ...], length: int
    ) -> None:
        self._whole, self._spans, self._length = whole, spans, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        places = range(self._length)[at]
        if isinstance(places, int):
            start, before = self._spans[self._span_of(places)]
            return self._whole[start + places - before]
        if places.step != 1:
            return [self[place] for place in places]
        found: list[int] = []
        if places:
            for index in range(self._span_of(places.start), len(self._spans)):
                start, before = self._spans[index]
                if before >= places.stop:
                    break
                after = self._spans[index + 1][1] if index + 1 < len(self._spans) else self._length
                first, last = max(places.start, before), min(places.stop, after)
                found += self._whole[start + first - before : start + last - before]
        return found

    def _span_of(self, place: int) -> int:
        """Return the index of the part that holds a token of the phase."""
        return bisect_right(self._spans, place, key=lambda span: span[1]) - 1


class _PhaseRequest(LinkRequest):
    """The request as a processor of one phase sees it: the answer is the tokens of the phase.

    Attributes:
        spans: As for :class:`_PhaseTokens`.
        length: Number of tokens of the phase so far.
    """

    __slots__ = ("length", "spans")

    def __init__(
        self,
        whole: Request,
        params: Any,
        spans: tuple[tuple[int, int], ...] = (),
        length: int = 0,
    ) -> None:
        self.spans, self.length = spans, length
        super().__init__(whole, params)

    def observe(self) -> None:
        """Copy the history of this step from the whole request, and cut the phase out of it."""
        super().observe()
        self.output_ids = _PhaseTokens(self.output_ids, self.spans, self.length)
        self.position = self.length


class _Running:
    """The processor at work on one request.

    Attributes:
        progress: The thinking of the whole request.
        request: The request as the processor sees it.
        looked: Position in the phase at the last call of ``edit``.
        wake: Position in the phase of the next call of ``edit``.
        held: The edits from ``looked`` until ``wake``, or ``None`` if they hold for one step.
        standing: The edits of every later step in the phase.
    """

    __slots__ = ("held", "looked", "progress", "request", "standing", "wake")

    def __init__(self, progress: Progress, request: _PhaseRequest) -> None:
        self.progress = progress
        self.request = request
        self.looked = self.wake = 0
        self.held: Recording | None = None
        self.standing: Recording | None = None

    def read(self, token_ids: Sequence[int], *, inside: bool) -> list[int]:
        """Follow the thinking; return the tokens of the phase.

        Args:
            token_ids: The next tokens of the whole request.
            inside: Whether the phase is the thinking.
        """
        progress, request, found = self.progress, self.request, []
        for token_id in token_ids:
            at = progress.position
            if progress.state.is_open == inside:
                spans, length = request.spans, request.length
                if not spans or spans[-1][0] + length - spans[-1][1] != at:
                    request.spans = (*spans, (at, length))
                request.length += 1
                found.append(token_id)
            progress.read((token_id,))
        return found

    def add_standing(self, recording: Recording) -> None:
        """Add edits that hold at every later step in the phase."""
        whole = Recording(recording.vocab_size)
        if self.standing is not None:
            whole.add(self.standing)
        whole.add(recording)
        self.standing = whole


class InPhase(LogitProcessor):
    """Runs another processor in one phase of an answer: its thinking, or the rest of it.

    A token is part of the phase in which it is sampled: the start of a block is part of the answer,
    its end is part of the thinking. To the other processor the tokens of the phase are the whole
    answer: they follow the prompt, positions count them, and between them it edits nothing.

    Args:
        processor: The processor that runs in the phase.
        where: The phase: ``"thinking"`` or ``"answer"``.
        finder: The delimiters of thinking.
        begins_inside: Whether a block is open before the first token, whatever the prompt says.
    """

    def __init__(
        self, processor: LogitProcessor, where: str, finder: Finder, *, begins_inside: bool
    ) -> None:
        self._processor = processor
        self._inside = where == "thinking"
        self._finder = finder
        self._begins_inside = begins_inside
        self.can_fork = processor.can_fork
        self.reads_prompt = True
        self.early = processor.early
        self.exclusion_only = processor.exclusion_only
        self.finishes = processor.finishes
        self.samples = processor.samples
        self.renormalizes = processor.renormalizes

    @property
    def name(self) -> str:
        """Class name of the other processor, for messages."""
        return self._processor.name

    def start(self, request: Request) -> _Running:
        """Start the other processor, and find out whether the prompt leaves a block open."""
        own = _PhaseRequest(request, request.params)
        own.state = self._processor.start(own)
        inside = self._begins_inside
        return _Running(Progress(self._finder, None, request.prompt_ids, inside=inside), own)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the thinking, and pass the tokens of the phase on."""
        running: _Running = request.state
        found = running.read(token_ids, inside=self._inside)
        if found:
            running.request.observe()
            self._processor.advance(running.request, found)

    def fork(self, request: Request) -> _Running:
        """Fork the state of the other processor."""
        running: _Running = copy(request.state)
        before = running.request
        running.progress = copy(running.progress)
        running.request = own = _PhaseRequest(request, before.params, before.spans, before.length)
        own.state = before.state
        own.state = self._processor.fork(own)
        return running

    def edit(self, request: Request, edits: Edits) -> None:
        """Add the edits of the other processor while the phase goes on."""
        running: _Running = request.state
        own = running.request
        at = own.length
        if running.progress.state.is_open == self._inside:
            own.observe()
            if not running.looked < at < running.wake:
                self._ask(running, edits)
            elif running.held is not None:
                edits.add(running.held)
            if running.standing is not None:
                edits.add(running.standing)
        if running.held is None and running.standing is None and running.wake > at:
            if running.wake >= NEVER:
                edits.rest()
            else:
                edits.wake_at(request.position + min(running.wake - at, _LONGEST_SLEEP))

    def _ask(self, running: _Running, edits: Edits) -> None:
        """Ask the other processor for its edits, and keep edits that hold longer."""
        at, own = running.request.length, Recording(edits.vocab_size)
        self._processor.edit(running.request, own)
        running.looked = at
        if self._processor.needs is History.NONE:
            own.fold_standing()
            running.standing, running.wake = own, NEVER
            return
        if own.standing is not None:
            running.add_standing(own.standing)
        running.wake = at + 1 if own.wake is None else own.wake
        running.held = own if own.holds else None
        edits.add(own)
        if own.end is not None:
            edits.finish(*own.end)

    def foresee(self, request: Request) -> Iterable[int]:
        """Name the tokens that the other processor forces, while the phase goes on."""
        running: _Running = request.state
        if running.progress.state.is_open != self._inside:
            return ()
        running.request.observe()
        return self._processor.foresee(running.request)

    def explain(self, request: Request) -> str:
        """Give the other processor's reason."""
        running: _Running = request.state
        if running.progress.state.is_open != self._inside:
            return ""
        running.request.observe()
        return self._processor.explain(running.request)
