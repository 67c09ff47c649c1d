"""Where a request is with its thinking, read from its tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sglang_lp.builtins._sequences import Automaton

__all__ = ["Delimiting", "Thinking", "delimiting"]


class Delimiting:
    """The sequences that a request's blocks begin and end with.

    Attributes:
        start: Opens a block.
        end: Closes it.
        closing: What is forced to close it: what comes before the end, and the end.
    """

    __slots__ = ("_next", "closer", "closing", "end", "ender", "reach", "start")

    def __init__(
        self, start: tuple[int, ...], end: tuple[int, ...], before_end: tuple[int, ...]
    ) -> None:
        self.start = start
        self.end = end
        self.closing = before_end + end
        #: Follow how much of ``end``, and of whichever of ``closing`` and ``end`` is further,
        #: the block ends with.
        self.ender = Automaton([end])
        self.closer = Automaton([self.closing, end])
        # ``closing`` was put in first, so where both go on, it does.
        self._next = [next(iter(after), self.closing[0]) for after in self.closer.children]
        #: How many tokens a delimiter may have before its last one.
        self.reach = max(len(start), len(end)) - 1

    def next_of(self, begun: int) -> int:
        """Return the token that goes on with what the block has begun, a state of ``closer``."""
        return self._next[begun]

    def latest(self, tokens: Sequence[int], known: int) -> tuple[int, bool] | None:
        """Find the latest delimiter.

        Args:
            tokens: Oldest first.
            known: How many of them are no longer looked at as the last of a delimiter.

        Returns:
            The index after it, and whether it opens a block; ``None`` if there is none.
        """
        start, end = self.start, self.end
        last_of_start, last_of_end = start[-1], end[-1]
        # Nearly always so, and found out twenty times as fast as by the loop.
        if last_of_start not in tokens and last_of_end not in tokens:
            return None
        for index in range(len(tokens) - 1, known - 1, -1):
            token_id = tokens[index]
            if token_id == last_of_start and _leads_to(tokens, index, start):
                return index + 1, True
            if token_id == last_of_end and _leads_to(tokens, index, end):
                return index + 1, False
        return None


@lru_cache(maxsize=64)
def delimiting(
    start: tuple[int, ...], end: tuple[int, ...], before_end: tuple[int, ...]
) -> Delimiting:
    """Return a :class:`Delimiting`, made once for all requests that are alike."""
    return Delimiting(start, end, before_end)


class Thinking:
    """What was read of one request.

    Attributes:
        by: Its delimiters.
        opened: Index of the first token inside the open block, prompt included; -1 if none is.
        begun: State of ``by.closer`` after the tokens generated in the open block.
        ending: State of ``by.ender`` after them: how many tokens of the end they end with.
        newest: The newest of them, or -1 before there is one.
        waits: How many of them are the token that is counted.
        forced: The last token forced without seeing the one before, and its position.
    """

    __slots__ = (
        "_counted",
        "_length",
        "_tail",
        "begun",
        "by",
        "ending",
        "forced",
        "forced_at",
        "newest",
        "opened",
        "waits",
    )

    def __init__(self, by: Delimiting, counted: int | None, prompt_ids: Sequence[int]) -> None:
        self.by = by
        self.opened = -1
        self.begun = self.ending = self.waits = 0
        self.newest = self.forced = self.forced_at = -1
        self._counted = counted
        self._length = 0
        self._tail: Sequence[int] = ()
        self._delimit(prompt_ids)

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in generated tokens."""
        inside = self._delimit(token_ids)
        if self.opened < 0 or not inside:
            return
        self.newest = inside[-1]
        if self._counted is not None:
            self.waits += sum(token_id == self._counted for token_id in inside)
        for token_id in inside[-len(self.by.closing) :]:  # none before these matters
            self.begun = self.by.closer.step(self.begun, token_id)
            self.ending = self.by.ender.step(self.ending, token_id)

    def _delimit(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Note where the latest block opens or closes; return the tokens after that."""
        reach = self.by.reach
        tail = self._tail
        tokens = [*tail, *token_ids] if tail else token_ids
        if reach:
            self._tail = [*tokens[-reach:]]
        latest = self.by.latest(tokens, len(tail))
        before = self._length - len(tail)
        self._length += len(token_ids)
        if latest is None:
            return token_ids
        index, opens = latest
        self.opened = before + index if opens else -1
        self.begun = self.ending = self.waits = 0
        self.newest = -1
        return tokens[index:]


def _leads_to(tokens: Sequence[int], index: int, delimiter: tuple[int, ...]) -> bool:
    length = len(delimiter)
    return length == 1 or (
        index + 1 >= length and tuple(tokens[index + 1 - length : index + 1]) == delimiter
    )
