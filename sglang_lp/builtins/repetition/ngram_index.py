"""The n-grams of a text that does not change, looked up by their first n - 1 tokens.

Built with numpy, because a prompt has up to 131,072 tokens and the batch waits; shared by the
copies of a prompt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of
from sglang_lp.copies import shared_by_copies
from sglang_lp.processor import lasting

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Group", "Later", "Text", "text_of"]

#: Fewest followers for which numpy is faster than a dict.
_MANY = 64

#: Fewest followers that are put together with the index, and not when they are asked for.
_VERY_MANY = 8_192

#: Tokens after which followers that leave a window are put together anew, and how many of these
#: a text keeps: copies of a request are at about the same place.
_STRIDE = 256
_MAX_LATER = 4


class Group(NamedTuple):
    """What has followed the same tokens.

    Attributes:
        ids: The followers, each once. An array of numpy if there are many, else a list.
        places: The index at which each of them stood last.
        oldest: The first of these.
    """

    ids: Any
    places: Any
    oldest: int


class Later(NamedTuple):
    """What of a large group stands in a window, of those that may be banned.

    Attributes:
        ids: Those that stay there for a while.
        leaving: The others.
        places: Where these stand.
    """

    ids: Collection[int]
    leaving: Numbers
    places: Numbers


class _Sequences(NamedTuple):
    """All sequences of one length in a text.

    Attributes:
        length: Tokens of a sequence.
        ranks: For each index of the text the rank of the sequence that begins there. Equal
            sequences alone have equal ranks, and ranks are in the order of the tokens.
        ends: The index after each sequence, in the order of their ranks, then of the text.
        is_first: For each of ``ends``, whether it is the first of equal sequences.
        is_settled: Whether longer sequences are equal wherever these are, however long.
    """

    length: int
    ranks: Numbers
    ends: Numbers
    is_first: Any
    is_settled: bool = False

    @classmethod
    def ranked(cls, numbers: Numbers, length: int, bits: int) -> _Sequences:
        """Rank sequences by numbers of the same order, one for each index where one begins."""
        import numpy as np

        packed = numbers << bits
        packed |= np.arange(len(numbers))
        packed.sort()
        is_first = np.ones(len(packed), dtype=bool)
        keys = packed >> bits
        np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
        packed &= (1 << bits) - 1
        ranks = np.empty_like(packed)
        ranks[packed] = np.cumsum(is_first)
        packed += length
        return cls(length, ranks, packed, is_first)

    def reach(self, bits: int) -> int:
        """Return the length of the longest sequences that one more sort ranks."""
        # As many as fit into 63 bits beside the index.
        return self.length * max(2, (63 - bits) // self._width)

    @property
    def _width(self) -> int:
        return int(self.ranks.max(initial=1)).bit_length()

    def longer(self, length: int, bits: int) -> _Sequences:
        """Return the sequences of another length, at least that of these."""
        import numpy as np

        found = self
        while found.length < length:
            if found.is_settled or found.is_first.all():
                return found._stretched(length)
            width, reached = found._width, min(length, found.reach(bits))
            numbers = found.ranks[: max(0, len(found.ranks) - reached + found.length)].copy()
            # If the longer ones are no more than their beginnings, still longer ones are no more.
            before = np.count_nonzero(np.bincount(numbers))
            for piece in range(1, -(-reached // found.length)):  # the last one may overlap
                offset = min(piece * found.length, reached - found.length)
                numbers <<= width
                numbers |= found.ranks[offset : offset + len(numbers)]
            found = self.ranked(numbers, reached, bits)
            found = found._replace(is_settled=before == int(found.ranks.max(initial=0)))
        return found

    def _stretched(self, length: int) -> _Sequences:
        """Return longer ones, which are equal where these are, and in the same order."""
        import numpy as np

        more = length - self.length
        left = max(0, len(self.ranks) - more)
        ends = self.ends[self.ends < left + self.length]
        of = self.ranks[ends - self.length]
        is_first = np.ones(left, dtype=bool)
        np.not_equal(of[1:], of[:-1], out=is_first[1:])
        return _Sequences(length, self.ranks[:left], ends + more, is_first, is_settled=True)


class Text:
    """The n-grams of a text.

    Where its sequences are is told exactly, by ranks of shorter ones that cover them: the length
    doubles at least with every sort (Karp, Miller and Rosenberg, 1972,
    doi 10.1145/800152.804905).

    Attributes:
        prompt: The bytes of the text's tokens.
        tokens: The text, shape ``(length,)``.
        new: End of the last ``third`` tokens that are new to the text, or 0.
    """

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_groups",
        "_later",
        "_sequences",
        "_thirds",
        "new",
        "prompt",
        "tokens",
    )

    def __init__(self, prompt: bytes, before: int, third: int) -> None:
        """Index a text.

        Args:
            prompt: The bytes of its tokens, 64 bits each.
            before: The n - 1 tokens by which an n-gram is looked up.
            third: Number of tokens of the sequences that :meth:`has_third` finds, at most
                ``before``.
        """
        import numpy as np

        self.prompt = prompt
        self.tokens: Numbers = np.frombuffer(prompt, dtype=np.int64)
        #: Big-endian, so that bytes compare as tokens do.
        self._bytes = self.tokens.byteswap().tobytes()
        #: The large ones that were asked for.
        self._groups: dict[int, Group] = {}
        self._later: dict[tuple[Any, ...], Later] = {}
        bits = len(self.tokens).bit_length()
        single = min(third, 1)
        numbers = self.tokens if single else np.zeros(len(self.tokens) + 1, dtype=np.int64)
        singles = _Sequences.ranked(numbers, single, bits)
        self._thirds = thirds = singles.longer(third, bits)
        at_once = not thirds.is_settled and before <= singles.reach(bits)
        self._sequences = (singles if at_once else thirds).longer(before, bits)
        firsts = self._thirds.ends[self._thirds.is_first]
        self.new = int(firsts.max(initial=0))
        # What takes a step long is done now.
        begins = self._sequences.is_first.nonzero()[0]
        lengths = np.diff(begins, append=len(self._sequences.ends))
        for place in (lengths >= _VERY_MANY).nonzero()[0].tolist():
            begin = int(begins[place])
            self._gather(begin, begin + int(lengths[place]))

    def _find(self, sequences: _Sequences, tokens: array[int]) -> tuple[int, int]:
        """Return where in ``sequences.ends`` those of these tokens begin and stop."""
        ends, size = sequences.ends.data, 8 * sequences.length
        wanted = array("q", tokens)
        wanted.byteswap()
        key = wanted.tobytes()

        def spelled(end: int) -> bytes:
            return self._bytes[8 * end - size : 8 * end]

        begin = bisect_left(ends, key, key=spelled)
        if begin == len(ends) or spelled(ends[begin]) != key:
            return begin, begin
        return begin, bisect_right(ends, key, begin, key=spelled)

    def group(self, tokens: array[int]) -> Group | None:
        """Return what has followed these ``before`` tokens."""
        begin, stop = self._find(self._sequences, tokens)
        if begin == stop:  # the next one in order begins there
            return None
        if begin in self._groups:
            return self._groups[begin]
        places = self._followed(begin, stop)
        if not len(places):
            return None
        if len(places) >= _MANY:
            return self._gather(begin, stop)
        last = dict(zip(self.tokens[places].tolist(), places.tolist(), strict=True))
        return Group([*last], [*last.values()], min(last.values()))

    def _followed(self, begin: int, stop: int) -> Numbers:
        """Return the indices of what followed: nothing does at the end of the text."""
        places = self._sequences.ends[begin:stop]
        return places[: len(places) - int(places[-1] == len(self.tokens))]

    def _gather(self, begin: int, stop: int) -> Group:
        """Put a large group together, which is kept."""
        bits = len(self.tokens).bit_length()
        places = self._followed(begin, stop)
        packed = self.tokens[places] << bits | places
        packed.sort()
        ids = packed >> bits
        ends = _ends_of_runs(ids)
        places = packed[ends] & ((1 << bits) - 1)
        group = self._groups[begin] = Group(ids[ends], places, int(places.min()))
        return group

    def later(
        self, group: Group, since: int, whitelist: frozenset[int], vocab_size: int
    ) -> Iterator[Collection[int]]:
        """Yield those of a large group that stood at an index or later, the same for all copies.

        Args:
            group: What :meth:`group` returned, with arrays.
            since: The index.
            whitelist: Tokens to leave out.
            vocab_size: Tokens from here on are left out, too.
        """
        until = 0 if since <= group.oldest else since + -since % _STRIDE
        key = id(group.ids), until, whitelist, vocab_size
        later = self._later.get(key)
        if later is None:
            known = int(group.ids.searchsorted(vocab_size))  # they are in order
            ids, places = group.ids[:known], group.places[:known]
            if whitelist:
                free = _bannable(whitelist, vocab_size)[ids]
                ids, places = ids[free], places[free]
            leaving = ids[:0], places[:0]
            if until:
                stay, near = places >= until, places >= until - _STRIDE
                near &= ~stay
                leaving = ids[near], places[near]
                ids = ids[stay]
            kept = array("q")
            kept.frombytes(ids.view("u1"))
            later = self._later[key] = Later(lasting(kept), *leaving)
            if len(self._later) > _MAX_LATER:
                del self._later[next(iter(self._later))]
        yield later.ids
        if until:
            yield later.leaving[later.places >= since].tolist()

    def has_third(self, tokens: array[int], since: int) -> bool:
        """Tell whether these ``third`` tokens ended at ``since`` or later."""
        if since > len(self.tokens):
            return False
        begin, stop = self._find(self._thirds, tokens)
        return begin < stop and bool(self._thirds.ends[stop - 1] >= since)


@shared_by_copies
def _bannable(whitelist: frozenset[int], vocab_size: int) -> Any:
    """Return for each token of the vocabulary whether it may be banned."""
    import numpy as np

    free = np.ones(vocab_size, dtype=bool)
    free[np.fromiter(whitelist, dtype=np.int64, count=len(whitelist))] = False
    return free


_texts: ReadPrompts[Text] = ReadPrompts()


def text_of(token_ids: Sequence[int], start: int, before: int, third: int) -> Text:
    """Return the index of the end of a prompt, the same for all its copies.

    Args:
        token_ids: The prompt; fastest as an array of 64 bits.
        start: Index of the first token that counts.
        before: As for :class:`Text`.
        third: As for :class:`Text`.
    """
    tokens = numbers_of(token_ids, start)
    return _texts.of(tokens, (before, third), lambda text: Text(text, before, third))


def _ends_of_runs(numbers: Numbers) -> Any:
    """Return which numbers are followed by another one."""
    import numpy as np

    ends = np.ones(len(numbers), dtype=bool)
    ends[:-1] = numbers[1:] != numbers[:-1]
    return ends
