"""Where a request is with its thinking, read from its tokens alone."""

from __future__ import annotations

from array import array
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
        closer: Follows how much of whichever of ``closing`` and ``end`` is further the block
            ends with.
        next_token: For each state of ``closer``, the token that goes on with it.
        lasts: The last tokens of ``start`` and ``end``.
        telling: The first tokens of ``closing`` and ``end``, and the last ones of delimiters: while
            there is none of them, and nothing is begun, nothing begins, opens or closes.
        reach: How many tokens a delimiter may have before its last one.
    """

    __slots__ = (
        "closer",
        "closing",
        "end",
        "lasts",
        "next_token",
        "reach",
        "start",
        "telling",
    )

    def __init__(
        self, start: tuple[int, ...], end: tuple[int, ...], before_end: tuple[int, ...]
    ) -> None:
        self.start = start
        self.end = end
        self.closing = before_end + end
        self.closer = Automaton([self.closing, end])
        # ``closing`` was put in first, so where both go on, it does.
        self.next_token = [next(iter(after), self.closing[0]) for after in self.closer.children]
        self.lasts = start[-1], end[-1]
        self.telling = frozenset({*self.closer.children[0], *self.lasts})
        self.reach = max(len(start), len(end)) - 1

    def latest(self, tokens: Sequence[int], known: int) -> tuple[int, bool] | None:
        """Find the latest delimiter.

        Args:
            tokens: Oldest first.
            known: How many of them are no longer looked at as the last of a delimiter.

        Returns:
            The index after it, and whether it opens a block; ``None`` if there is none.
        """
        data = array("q", tokens).tobytes()
        start, end = _after_last(data, self.start), _after_last(data, self.end)
        latest = max(start, end)
        return (latest, latest == start) if latest > known else None


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
        length: How many tokens were read, prompt included.
        opened: Index of the first token inside the open block, prompt included; -1 if none is.
        begun: State of ``by.closer`` after the tokens generated in the open block.
        newest: The newest of them, or -1 before there is one.
        waits: How many of them are the token that is counted.
        forced: The last token forced without seeing the one before, and its position.
    """

    __slots__ = (
        "_counted",
        "_tail",
        "begun",
        "by",
        "forced",
        "forced_at",
        "length",
        "newest",
        "opened",
        "waits",
    )

    def __init__(self, by: Delimiting, counted: int | None, prompt_ids: Sequence[int]) -> None:
        self.by = by
        self.opened = -1
        self.forced = self.forced_at = -1
        self._counted = counted
        self.length = 0
        self._tail: Sequence[int] = ()
        self._reset()
        self.read(prompt_ids)
        self._reset()  # of the prompt counts only where a block opened

    def _reset(self) -> None:
        """Start with a block of which nothing was read."""
        self.begun = self.waits = 0
        self.newest = -1

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in tokens."""
        by, inside = self.by, token_ids
        self.length += len(token_ids)
        if self.begun or not by.telling.isdisjoint(token_ids):  # hardly ever
            inside = self._follow(token_ids)
        if by.reach:
            self._tail = [*self._tail, *token_ids[-by.reach :]][-by.reach :]
        if inside:
            self.newest = inside[-1]
        if self._counted is not None:
            self.waits += inside.count(self._counted)

    @property
    def of_end(self) -> int:
        """With how many tokens of the end, but not all, the history ends, prompt included."""
        end, tail = self.by.end, tuple(self._tail)
        lengths = range(len(end) - 1, 0, -1)
        return next((length for length in lengths if tail[-length:] == end[:length]), 0)

    def _follow(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Note what of the delimiters and the closing there is; return the tokens after that."""
        by, inside = self.by, token_ids
        last_of_start, last_of_end = by.lasts
        # Found out twenty times as fast as by looking at each.
        if last_of_start in token_ids or last_of_end in token_ids:
            inside = self._delimit(token_ids)
        if self.opened >= 0:
            for token_id in inside[-len(by.closing) :]:  # none before these matters
                self.begun = by.closer.step(self.begun, token_id)
        return inside

    def _delimit(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Note where the latest block opens or closes; return the tokens after that."""
        tail = self._tail
        tokens = [*tail, *token_ids] if tail else token_ids
        latest = self.by.latest(tokens, len(tail))
        if latest is None:
            return token_ids
        index, opens = latest
        self.opened = self.length - len(tokens) + index if opens else -1
        self._reset()
        return tokens[index:]


def _after_last(data: bytes, delimiter: tuple[int, ...]) -> int:
    """Return the index of the token after the last delimiter, 0 if there is none."""
    wanted = array("q", delimiter)
    at = data.rfind(wanted)
    while at % wanted.itemsize and at > 0:  # begins inside a token
        at = data.rfind(wanted, 0, at - 1 + len(wanted) * wanted.itemsize)
    return at // wanted.itemsize + len(wanted) if at >= 0 else 0
