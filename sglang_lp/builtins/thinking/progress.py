"""How far a request is with its thinking, read from its tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.ids import lasting
from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of
from sglang_lp.text.automaton import Automaton

if TYPE_CHECKING:
    from sglang_lp.builtins.prompt.prompts import Numbers

__all__ = ["Block", "Markers", "Progress", "blocks", "markers_for"]


#: Tokens at the end of a prompt, among which its latest delimiter is most of the time.
_PIECE = 4_096


class Markers:
    """The token sequences that open and close the blocks of a request.

    Attributes:
        start: Opens a block.
        end: Closes it.
        closing: Forced to close it: what comes before the end, then the end.
        closer: Follows the longest prefix of ``closing`` or ``end`` that is a suffix of the block.
        next_token: For each state of ``closer``, the token that continues it.
        lasts: The last tokens of ``start`` and ``end``.
        telling: The first tokens of ``closing`` and ``end``, and the last tokens of ``start`` and
            ``end``. Tokens without any of these change nothing, unless a closing is begun.
        reach: Most tokens of a delimiter before its last one.
        others: The tokens that end the answer and are not in the end.
        closing_signs: For each number of tokens of the end that are written, the next one of it
            and ``others``.
    """

    __slots__ = (
        "closer",
        "closing",
        "closing_signs",
        "end",
        "lasts",
        "next_token",
        "others",
        "reach",
        "start",
        "telling",
    )

    def __init__(
        self,
        start: tuple[int, ...],
        end: tuple[int, ...],
        before_end: tuple[int, ...],
        eos: tuple[int, ...],
    ) -> None:
        self.start = start
        self.end = end
        self.closing = before_end + end
        self.closer = Automaton([self.closing, end])
        # ``closing`` was added first, so it comes first where both continue.
        self.next_token = [next(iter(after), self.closing[0]) for after in self.closer.children]
        self.lasts = start[-1], end[-1]
        self.telling = frozenset({*self.closer.children[0], *self.lasts})
        self.reach = max(len(start), len(end)) - 1
        others = [token_id for token_id in dict.fromkeys(eos) if token_id not in end]
        self.others = lasting(others)
        self.closing_signs = [lasting([token_id, *others]) for token_id in end]

    def latest(self, tokens: Sequence[int], known: int) -> tuple[int, bool] | None:
        """Find the latest delimiter.

        Args:
            tokens: Oldest first.
            known: How many of the first tokens were searched before. No delimiter that ends
                among them is found again.

        Returns:
            The index after it, and whether it opens a block; ``None`` if there is none.
        """
        latest = self._latest(numbers_of(tokens))
        return latest if latest is not None and latest[0] > known else None

    def _latest(self, tokens: Numbers) -> tuple[int, bool] | None:
        start, end = _after_last(tokens, self.start), _after_last(tokens, self.end)
        latest = max(start, end)
        return (latest, latest == start) if latest else None

    def latest_of_prompt(self, prompt_ids: Sequence[int]) -> _Searched:
        """Find the latest delimiter of a prompt, once for all of its copies."""
        tokens = numbers_of(prompt_ids)
        # Most of the time it is near the end, and found sooner than the copies are compared.
        before = max(0, len(tokens) - _PIECE)
        begin = max(0, before - self.reach)
        latest = self._latest(tokens[begin:])
        if latest is not None and begin + latest[0] > before:
            return _Searched(b"", (begin + latest[0], latest[1]))
        if not before:
            return _Searched(b"", None)
        key = self.start, self.end
        return _searched.of(tokens, key, lambda prompt: _Searched(prompt, self._latest(tokens)))


class _Searched:
    """The latest delimiter of a prompt, as :meth:`Markers.latest` returns it."""

    __slots__ = ("__weakref__", "latest", "prompt")

    def __init__(self, prompt: bytes, latest: tuple[int, bool] | None) -> None:
        self.prompt = prompt
        self.latest = latest


_searched: ReadPrompts[_Searched] = ReadPrompts()


@lru_cache(maxsize=64)
def markers_for(
    start: tuple[int, ...],
    end: tuple[int, ...],
    before_end: tuple[int, ...],
    eos: tuple[int, ...] = (),
) -> Markers:
    """Return a :class:`Markers`, shared by all requests with the same tokens."""
    return Markers(start, end, before_end, eos)


class Progress:
    """What the tokens of one request have shown so far.

    Attributes:
        markers: Its delimiters.
        length: How many tokens were read, prompt included.
        opened: Index of the first token inside the open block, prompt included; -1 if none is.
        begun: State of ``markers.closer`` after the tokens generated in the open block.
        newest: The newest of them, or -1 before there is one.
        waits: How many of them are the token that is counted.
        forced: The last token that was forced without seeing the one before, or -1.
        forced_at: Its position, or -1.
    """

    __slots__ = (
        "_counted",
        "_searched",
        "_tail",
        "begun",
        "forced",
        "forced_at",
        "length",
        "markers",
        "newest",
        "opened",
        "waits",
    )

    def __init__(self, markers: Markers, counted: int | None, prompt_ids: Sequence[int]) -> None:
        self.markers = markers
        self.opened = -1
        self.forced = self.forced_at = -1
        self._counted = counted
        # The prompt only counts for where a block opened.
        self.length = len(prompt_ids)
        # Kept, so that copies that come later find it.
        self._searched = markers.latest_of_prompt(prompt_ids)
        latest = self._searched.latest
        if latest is not None and latest[1]:
            self.opened = latest[0]
        reach = min(markers.reach, self.length)
        self._tail: Sequence[int] = [*prompt_ids[self.length - reach :]]
        self._reset()

    def _reset(self) -> None:
        """Begin a block with no generated tokens."""
        self.begun = self.waits = 0
        self.newest = -1

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in tokens."""
        markers, inside = self.markers, token_ids
        self.length += len(token_ids)
        if self.begun or not markers.telling.isdisjoint(token_ids):  # rare
            inside = self._follow(token_ids)
        if markers.reach:
            self._tail = [*self._tail, *token_ids[-markers.reach :]][-markers.reach :]
        if inside:
            self.newest = inside[-1]
        if self._counted is not None:
            self.waits += inside.count(self._counted)

    @property
    def of_end(self) -> int:
        """How many tokens of the end, but not all, the history ends with, prompt included."""
        end, tail = self.markers.end, tuple(self._tail)
        lengths = range(len(end) - 1, 0, -1)
        return next((length for length in lengths if tail[-length:] == end[:length]), 0)

    def _follow(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Note delimiters and the beginning of a closing; return the tokens after a delimiter."""
        markers, inside = self.markers, token_ids
        last_of_start, last_of_end = markers.lasts
        # Twenty times as fast as looking at each token.
        if last_of_start in token_ids or last_of_end in token_ids:
            inside = self._delimit(token_ids)
        if self.opened >= 0:
            for token_id in inside[-len(markers.closing) :]:  # none before these matters
                self.begun = markers.closer.step(self.begun, token_id)
        return inside

    def _delimit(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Note where the latest block opens or closes; return the tokens after the delimiter."""
        tail = self._tail
        tokens = [*tail, *token_ids] if tail else token_ids
        latest = self.markers.latest(tokens, len(tail))
        if latest is None:
            return token_ids
        index, opens = latest
        self.opened = self.length - len(tokens) + index if opens else -1
        self._reset()
        return tokens[index:]


class Block(NamedTuple):
    """A thinking block of an answer.

    Attributes:
        start: Position in the output of its first token; negative if it opened in the prompt.
        tokens: How many tokens it has, in the prompt too, without its delimiters.
        end: Position of the last token of its end; ``None`` if it has not ended.
        closing: What is forced to close it.
    """

    start: int
    tokens: int
    end: int | None
    closing: tuple[int, ...]


def blocks(markers: Markers, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[Block]:
    """Return the blocks in which tokens of the output lie, in their order."""
    import numpy as np

    begun = len(prompt_ids)
    latest = markers.latest(prompt_ids, 0)
    inside = latest[0] - begun if latest is not None and latest[1] else None
    shift = min(markers.reach, begun)  # a delimiter may begin in the prompt
    whole = np.array([*prompt_ids[begun - shift :], *output_ids], dtype=np.int64)
    marks = [(int(i), True) for i in _all_after(whole, markers.start)]
    marks += [(int(i), False) for i in _all_after(whole, markers.end)]
    found = []
    for after, opens in sorted(mark for mark in marks if mark[0] > shift):
        place = after - shift
        if inside is not None:
            length = len(markers.start) if opens else len(markers.end)
            end = None if opens else place - 1
            found.append(Block(inside, place - inside - length, end, markers.closing))
        inside = place if opens else None
    if inside is not None and len(output_ids) > max(inside, 0):
        found.append(Block(inside, len(output_ids) - inside, None, markers.closing))
    return found


def _all_after(tokens: Any, delimiter: tuple[int, ...]) -> Any:
    """Return the index of the token after every delimiter."""
    reach = len(delimiter) - 1
    ends = (tokens[reach:] == delimiter[-1]).nonzero()[0] + reach
    for back in range(1, len(delimiter)):
        ends = ends[tokens[ends - back] == delimiter[reach - back]]
    return ends + 1


def _after_last(tokens: Any, delimiter: tuple[int, ...]) -> int:
    """Return the index of the token after the last delimiter, 0 if there is none."""
    ends = _all_after(tokens, delimiter)
    return int(ends[-1]) if len(ends) else 0
