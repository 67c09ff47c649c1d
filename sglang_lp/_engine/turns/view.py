"""The view of a turn: the request as one processor of a row sees it.

Three views exist: the whole answer; an answer that begins behind resumed tokens, which are prompt
to this processor; and one phase of an answer, whose tokens are the whole answer to this processor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from sglang_lp.request import Request

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.reading import Reading
    from sglang_lp.links import Phase, Phases, Serving
    from sglang_lp.request import Answer


class RestOfTokens(Sequence[int]):
    """All but the first of some tokens, without a copy."""

    __slots__ = ("_skipped", "_whole")

    def __init__(self, whole: Sequence[int], skipped: int) -> None:
        self._whole = whole
        self._skipped = skipped

    def __len__(self) -> int:
        return max(0, len(self._whole) - self._skipped)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        places = range(self._skipped, len(self._whole))[at]
        if isinstance(places, int):
            return self._whole[places]
        return self._whole[places.start : places.stop : places.step] if places else []


class PhaseTokens(Sequence[int]):
    """The tokens of one phase out of all tokens of an answer, without a copy.

    Args:
        whole: All tokens.
        spans: The phase: for each of its parts the first position, and the number of tokens of the
            parts before it.
        length: Number of tokens of the phase.
    """

    __slots__ = ("_length", "_spans", "_whole")

    def __init__(self, whole: Sequence[int], spans: Sequence[tuple[int, int]], length: int) -> None:
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


class View(Request):
    """A request as one turn sees it.

    Attributes:
        reading: The logits of the step, shared by all turns of the row.
        sampling: SGLang's ``SamplingParams`` of the request, or ``None`` in a unit test.
        skipped: Number of resumed tokens that are prompt to this turn.
        phase: The phase in which the turn edits; ``None`` for the whole answer.
        phases: The phases of the answer so far, if there is a phase.
        is_whole: Whether the view has no cut: nothing skipped, no phase.
    """

    __slots__ = ("is_whole", "phase", "phases", "reading", "sampling", "skipped")

    def __init__(
        self, serving: Serving, reading: Reading, *, may_lag: bool, tokenizer: Any, sampling: Any
    ) -> None:
        super().__init__(serving.params, may_lag=may_lag, tokenizer=tokenizer)
        self.reading = reading
        self.sampling = sampling
        self.skipped = serving.skipped
        self.phase: Phase | None = serving.phase
        self.phases: Phases | None = None
        self.is_whole = not self.skipped and self.phase is None

    @property
    def logits(self) -> torch.Tensor:
        return self.reading.logits

    def top(self, count: int) -> list[int]:
        return self.reading.top(count)

    def is_among_top(self, token_ids: Iterable[int], count: int) -> Answer:
        return self.reading.is_among_top(token_ids, count)

    @property
    def is_closed(self) -> bool:
        """Whether the next token is outside of the phase."""
        phase, phases = self.phase, self.phases
        return phase is not None and phases is not None and phases.is_open != phase.is_thinking

    def show(
        self, full_prompt_ids: Sequence[int], prompt_ids: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Show a new history: other sequences than before.

        Args:
            full_prompt_ids: The prompt with the tokens at its end that the row resumes.
            prompt_ids: The prompt without them.
            tokens: The generated tokens, resumed ones included; grows with the request.
        """
        self.prompt_ids = full_prompt_ids if self.skipped else prompt_ids
        self.output_ids = RestOfTokens(tokens, self.skipped) if self.skipped else tokens

    def see(self, position: int, tokens: Sequence[int], *, exact: bool) -> None:
        """Move on to a position of the row.

        Args:
            position: Number of generated tokens, resumed ones included.
            tokens: These tokens, as far as they are known.
            exact: Whether all of them are.
        """
        self.exact = exact
        self.position = position
        if self.is_whole:
            return
        if self.skipped:
            self.position = position - self.skipped
            tokens = RestOfTokens(tokens, self.skipped)
        phase, phases = self.phase, self.phases
        if phase is not None and phases is not None:
            self.position = length = phases.length(thinking=phase.is_thinking)
            self.output_ids = PhaseTokens(tokens, phases.spans(thinking=phase.is_thinking), length)
