"""The n-grams of a text that does not change, looked up by their first n - 1 tokens.

Built with numpy and torch, because a prompt has up to 131,072 tokens and the batch waits; shared by
the copies of a prompt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from itertools import count
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


class _Fingerprints:
    """Fingerprints of sequences of tokens.

    A fingerprint is the sum of what the tokens are scattered to, times powers of a number (Karp
    and Rabin, 1987, doi 10.1147/rd.312.0249), modulo 2 ** 64. If the tokens were not scattered, a
    text could be made whose fingerprints are equal for every number, because powers of odd numbers
    differ by many powers of two.

    Args:
        longest: Of the sequences.
        drawn: Two odd numbers of 64 bits, which nobody chose: the key by which tokens are
            scattered, and the number whose powers are taken.
    """

    __slots__ = ("_factor", "_key", "_weights")

    def __init__(self, longest: int, drawn: tuple[int, int]) -> None:
        import numpy as np

        self._key, self._factor = np.uint64(drawn[0]), drawn[1]
        self._weights = _powers(self._factor, longest)

    def of(self, tokens: array[int]) -> int:
        """Return the fingerprint of one sequence."""
        import numpy as np

        scattered = self._scattered(np.frombuffer(tokens, dtype=np.int64))
        return int((scattered @ self._weights[: len(tokens)]).view("i8"))

    def of_all(self, tokens: Numbers, lengths: Sequence[int]) -> Iterator[Numbers]:
        """Yield for each length the fingerprints of all of a text's sequences, in new arrays."""
        import numpy as np

        size = len(tokens)
        sums = np.zeros(size + 1, dtype=np.uint64)
        # Arrays are written over: what fresh ones cost is mostly that the system clears them.
        scattered = self._scattered(tokens)
        scattered *= _powers(self._factor, size)
        np.cumsum(scattered, out=sums[1:])
        inverse = _powers(pow(self._factor, -1, 1 << 64), size + 1)
        for length in lengths:
            found = sums[length:] - sums[: max(0, size + 1 - length)]
            found *= inverse[: len(found)]
            yield found.view("i8")

    def _scattered(self, tokens: Numbers) -> Any:
        """Return a number of 64 bits for each token: equal differences do not stay equal."""
        import numpy as np

        found = tokens.view(np.uint64) * self._key
        found ^= found >> np.uint64(32)
        return found


class _Sequences:
    """All sequences of one length in a text, in the order of fingerprints.

    One sort, whatever the text and the length: the lowest bits of a fingerprint give way to the
    index at which the sequence begins.

    Args:
        fingerprints: Of sequences of tokens.
        found: Those of the text's sequences; written over.
        length: Of the sequences.

    Attributes:
        firsts: Which of them, in their order, is the first of those with its fingerprint.
    """

    __slots__ = ("_bits", "_fingerprints", "_length", "_sorted", "firsts")

    def __init__(self, fingerprints: _Fingerprints, found: Numbers, length: int) -> None:
        import numpy as np

        self._fingerprints, self._length = fingerprints, length
        self._bits = bits = len(found).bit_length()
        found >>= bits
        found <<= bits
        found |= np.arange(len(found))
        self._sorted = found = _sorted(found)
        prints = found >> bits
        self.firsts = np.ones(len(found), dtype=bool)
        np.not_equal(prints[1:], prints[:-1], out=self.firsts[1:])

    def are_told_apart(self, tokens: Numbers) -> bool:
        """Tell whether those with equal fingerprints are equal."""
        import numpy as np

        ends = self.ends(slice(None))
        same = ~self.firsts[1:]
        before = np.full(len(tokens) + 1, -1)
        before[ends[1:][same]] = ends[:-1][same]
        (others,) = (before >= 0).nonzero()
        ones = before[others]
        for _ in range(self._length):
            ones, others = ones - 1, others - 1
            if not np.array_equal(tokens[ones], tokens[others]):
                return False
            # The other tokens of two are equal if those are that end here, which are looked at.
            rest = before[others] != ones
            ones, others = ones[rest], others[rest]
            if not len(ones):
                break
        return True

    def ends(self, which: Any) -> Numbers:
        """Return the indices after some, chosen as of an array; those of equal ones ascend."""
        found: Numbers = self._sorted[which] & ((1 << self._bits) - 1)
        found += self._length
        return found

    def few_ends(self, begin: int, stop: int) -> list[int]:
        """Return the same in a list, of some that follow each other."""
        mask, length = (1 << self._bits) - 1, self._length
        return [(one & mask) + length for one in self._sorted.data[begin:stop]]

    def find(self, tokens: array[int]) -> tuple[int, int]:
        """Return where those with the fingerprint of these tokens begin and stop."""
        bits, found = self._bits, self._sorted.data
        if not len(found):
            return 0, 0
        key = self._fingerprints.of(tokens) >> bits << bits
        begin = bisect_left(found, key)
        return begin, bisect_left(found, key + (1 << bits), begin)


def _draw(prompt: bytes, turn: int) -> tuple[int, int]:
    """Return two numbers that hang on every byte of a text: the same on all ranks of a model."""
    drawn = blake2b(prompt, digest_size=16, salt=turn.to_bytes(8, "little")).digest()
    key, factor = (int.from_bytes(half, "little") for half in (drawn[:8], drawn[8:]))
    return key | 1, factor >> 3 << 3 | 5  # of which as many powers differ as can be


class Text:
    """The n-grams of a text.

    Attributes:
        prompt: The bytes of the text's tokens.
        tokens: The text, shape ``(length,)``.
        new: End of the last ``third`` tokens that are new to the text, or 0.
    """

    __slots__ = (
        "__weakref__",
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
        #: The large ones that were asked for.
        self._groups: dict[int, Group] = {}
        self._later: dict[tuple[Any, ...], Later] = {}
        wanted = [before] if third == before else [before, third]
        for turn in count():
            fingerprints = _Fingerprints(before, _draw(prompt, turn))
            found = fingerprints.of_all(self.tokens, wanted)
            self._sequences = _Sequences(fingerprints, next(found), before)
            if self._sequences.are_told_apart(self.tokens):
                break
        # Not worth a look: a new one that is taken for another wakes a row too early.
        thirds = next(found, None)
        self._thirds = self._sequences
        if thirds is not None:
            self._thirds = _Sequences(fingerprints, thirds, third)
        (firsts,) = self._thirds.firsts.nonzero()
        self.new = int(self._thirds.ends(firsts).max(initial=0))
        # What takes a step long is done now.
        (begins,) = self._sequences.firsts.nonzero()
        lengths = np.diff(begins, append=len(self._sequences.firsts))
        for place in (lengths >= _VERY_MANY).nonzero()[0].tolist():
            begin = int(begins[place])
            self._gather(begin, begin + int(lengths[place]))

    def group(self, tokens: array[int]) -> Group | None:
        """Return what has followed these ``before`` tokens."""
        begin, stop = self._sequences.find(tokens)
        if begin == stop:  # another one begins there
            return None
        places = self._sequences.few_ends(begin, min(stop, begin + _MANY + 1))
        if self.prompt[8 * (places[0] - len(tokens)) : 8 * places[0]] != tokens.tobytes():
            return None
        if begin in self._groups:
            return self._groups[begin]
        if places[-1] == len(self.tokens):  # nothing follows
            places.pop()
        if not places:
            return None
        if len(places) >= _MANY:
            return self._gather(begin, stop)
        following = self.tokens.data
        last = {following[place]: place for place in places}
        return Group([*last], [*last.values()], min(last.values()))

    def _followed(self, begin: int, stop: int) -> Numbers:
        """Return the indices of what followed: nothing does at the end of the text."""
        places = self._sequences.ends(slice(begin, stop))
        return places[: len(places) - int(places[-1] == len(self.tokens))]

    def _gather(self, begin: int, stop: int) -> Group:
        """Put a large group together, which is kept."""
        bits = len(self.tokens).bit_length()
        places = self._followed(begin, stop)
        packed = self.tokens[places]
        packed <<= bits
        packed |= places
        packed = _sorted(packed)
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
        """Tell whether these ``third`` tokens ended at ``since`` or later.

        One time in thousands of texts it takes others for them.
        """
        if since > len(self.tokens):
            return False
        begin, stop = self._thirds.find(tokens)
        return begin < stop and self._thirds.few_ends(stop - 1, stop)[0] >= since


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


def _powers(factor: int, many: int) -> Any:
    """Return the first powers of a number modulo 2 ** 64, from its zeroth on."""
    import numpy as np

    powers = np.full(many, factor, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, out=powers)


def _sorted(numbers: Numbers) -> Numbers:
    """Return the numbers in order: for a long prompt torch takes half of numpy's time."""
    import torch

    return torch.from_numpy(numbers).sort().values.numpy()


def _ends_of_runs(numbers: Numbers) -> Any:
    """Return which numbers are followed by another one."""
    import numpy as np

    ends = np.ones(len(numbers), dtype=bool)
    ends[:-1] = numbers[1:] != numbers[:-1]
    return ends
