"""The phases of an answer: its thinking, and the rest of it.

A token is part of the phase in which it is sampled: the start of a block is part of the answer, its
end is part of the thinking.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Self

from sglang_lp.builtins.thinking.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp.builtins.thinking.finder import Finder

_Spans = tuple[tuple[int, int], ...]


class ThinkingPhase(NamedTuple):
    """The phase in which a processor edits.

    Attributes:
        is_thinking: Whether it is the thinking; if not, the text outside of it.
        finder: The delimiters of thinking.
        begins_inside: Whether a block is open before the first token, whatever the prompt says.
        headed: Whether the answer begins after a text that opens it: what comes before is thinking.
    """

    is_thinking: bool
    finder: Finder
    begins_inside: bool = False
    headed: bool = False

    @property
    def key(self) -> object:
        """Equal for phases with the same delimiters and beginning."""
        return self.finder, self.begins_inside, self.headed

    def begin_inside(self) -> Self:
        """Return the phase of an answer that SGLang may parse as thinking from its start.

        A phase whose delimiters are not those of the served reasoning parser stays as it is.
        """
        return self._replace(begins_inside=True) if self.finder.reads_text else self

    def follow(self, prompt_ids: Sequence[int]) -> ThinkingPhases:
        """Find out whether a prompt leaves a block open."""
        progress = Progress(self.finder, None, prompt_ids, inside=self.begins_inside)
        if self.headed:
            progress.await_header()
        return ThinkingPhases(progress, headed=self.headed)


class ThinkingPhases:
    """The phases of one answer, followed token by token.

    Args:
        progress: The thinking of the request, after its prompt.
        headed: As for :class:`ThinkingPhase`.

    Attributes:
        is_open: Whether the next token is thinking.
        telling: The tokens that may begin or be a delimiter.
    """

    __slots__ = ("_headed", "_progress", "_spans", "is_open", "telling")

    def __init__(self, progress: Progress, *, headed: bool) -> None:
        self._progress, self._headed = progress, headed
        self.telling = progress.finder.telling
        self.is_open = self._thinks
        #: The parts of the answer and of the thinking. Tuples: a copy for a draft shares them.
        self._spans: tuple[_Spans, _Spans] = ((), ((0, 0),)) if self.is_open else (((0, 0),), ())

    def __copy__(self) -> ThinkingPhases:
        made = object.__new__(ThinkingPhases)
        made._progress, made._headed = copy(self._progress), self._headed
        made._spans, made.is_open, made.telling = self._spans, self.is_open, self.telling
        return made

    @property
    def _thinks(self) -> bool:
        progress = self._progress
        return not progress.answers if self._headed else progress.state.is_open

    @property
    def is_settled(self) -> bool:
        """Whether no delimiter is begun."""
        return self._progress.is_settled

    def read(self, token_ids: Sequence[int]) -> None:
        """Read the next generated tokens."""
        progress = self._progress
        if progress.is_settled:
            # A row that slept was woken by the last of its tokens, if by any.
            for known in (token_ids, token_ids[:-1]):
                if self.telling.isdisjoint(known):
                    progress.read(known)
                    token_ids = token_ids[len(known) :]
                    break
        for token_id in token_ids:
            progress.read((token_id,))
            if self._thinks != self.is_open:
                self._switch()

    def _switch(self) -> None:
        """Begin a part of the other phase with the next token."""
        self.is_open = not self.is_open
        answer, thinking = self._spans
        begun = (self._progress.position, self.length(thinking=self.is_open))
        if self.is_open:
            self._spans = answer, (*thinking, begun)
        else:
            self._spans = (*answer, begun), thinking

    def length(self, *, thinking: bool) -> int:
        """Return the number of generated tokens of a phase."""
        # Each part of a phase ends where the next part of the other begins.
        position = self._progress.position
        own, other = self._spans[thinking], self._spans[not thinking]
        if not own:
            return 0
        start, before = own[-1]
        end = position
        if other and other[-1][0] > start:
            end = other[-1][0]
        return before + end - start

    def spans(self, *, thinking: bool) -> Sequence[tuple[int, int]]:
        """Return the parts of a phase: first position, and number of tokens of earlier parts."""
        return self._spans[thinking]
