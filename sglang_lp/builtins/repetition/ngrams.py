"""The n-grams of a text that does not change, looked up by their first n - 1 tokens.

Built with numpy, because a prompt has up to 131,072 tokens and the batch waits; shared by the
copies of a prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.ids import Ids, lasting
from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["PRIME", "Bases", "Group", "Later", "Text", "draw_bases", "text_of"]

#: Hashes are polynomials modulo this prime. Below it Python multiplies and divides twice as fast
#: as above 2**30, and so close to that a remainder takes numpy no division.
_BITS = 30
_SHORT = 35
PRIME: int = 2**_BITS - _SHORT

#: So many tokens are compared one by one in less time than it takes to find out which have to be.
_FEW = 3

#: Fewest followers for which numpy is faster than a dict.
_MANY = 64

#: Fewest followers that are put together with the index, and not when they are asked for.
_VERY_MANY = 8_192

#: Tokens after which followers that leave a window are put together anew, and how many of these
#: a text keeps: copies of a request are at about the same place.
_STRIDE = 256
_MAX_LATER = 4


class Bases(NamedTuple):
    """Numbers that nobody knows, of which a hash is made.

    Attributes:
        first: Where the polynomial of one half is evaluated.
        second: Where that of the other half is.
        spread: Keeps ids that differ by a multiple of the prime apart.
    """

    first: int
    second: int
    spread: int

    def coefficients(self, token_ids: array[int]) -> array[int]:
        """Return what stands for tokens in the polynomials: ids below the prime for themselves."""
        if not token_ids or max(token_ids) < PRIME:
            return token_ids
        return array("q", [(i + i // PRIME * self.spread) % PRIME for i in token_ids])

    def all_coefficients(self, tokens: Numbers) -> Numbers:
        """Do the same to a whole text."""
        if not len(tokens) or tokens.max() < PRIME:
            return tokens
        coefficients: Numbers = tokens % PRIME + tokens // PRIME % PRIME * self.spread
        coefficients %= PRIME
        return coefficients


def draw_bases() -> Bases:
    """Return other bases."""
    import secrets  # 6 ms, which the client has no use for

    return Bases(*(2 + secrets.randbelow(PRIME - 2) for _ in range(3)))


#: Of the texts that are shared.
_shared_bases = cache(draw_bases)


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

    ids: Ids | list[int]
    leaving: Numbers
    places: Numbers


class Text:
    """The n-grams of a text.

    Sequences are found by a hash, so what is found is compared with the tokens themselves. Two
    different ones with the same hash are found while building, which begins again with other
    bases; so each hash stands for one sequence.

    Attributes:
        bases: Of the hashes.
        prompt: The bytes of the text's tokens.
        tokens: The text, shape ``(length,)``.
        rolled: Hashes of its last n - 1 tokens to both bases, and of its last ``third``. Missing
            tokens before the first one count as 0.
        new: End of the last ``third`` tokens that are new to the text, or 0.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_groups",
        "_later",
        "_place_bits",
        "_sorted",
        "_sorted_thirds",
        "bases",
        "new",
        "prompt",
        "rolled",
        "tokens",
    )

    def __init__(self, prompt: bytes, before: int, third: int, bases: Bases) -> None:
        """Index a text.

        Args:
            prompt: The bytes of its tokens, 64 bits each.
            before: The n - 1 tokens by which an n-gram is looked up.
            third: Number of tokens of the sequences that :meth:`has_third` finds.
            bases: Of the hashes; others are taken if these do not tell the n-grams apart.
        """
        import numpy as np

        self.prompt = prompt
        self.tokens: Numbers = np.frombuffer(prompt, dtype=np.int64)
        self._before = before
        self._place_bits = len(self.tokens).bit_length()
        #: The large ones that were asked for.
        self._groups: dict[int, Group] = {}
        self._later: dict[tuple[Any, ...], Later] = {}
        while not self._index(bases, third):
            bases = draw_bases()
        # What takes a step long is done now.
        keys = self._sorted >> self._place_bits
        stops = _ends_of_runs(keys).nonzero()[0] + 1
        lengths = np.diff(stops, prepend=0)
        for place in (lengths >= _VERY_MANY).nonzero()[0].tolist():
            stop = int(stops[place])
            self._gather(int(keys[stop - 1]), stop - int(lengths[place]), stop)

    def _index(self, bases: Bases, third: int) -> bool:
        """Index the text; return whether every hash stands for one sequence."""
        import numpy as np

        self.bases = bases
        length, before = len(self.tokens), self._before
        coefficients = bases.all_coefficients(self.tokens)
        evaluated = bases.first, bases.second
        sums = [_sums(coefficients, base) for base in evaluated]
        self.rolled = (
            *(_last(s, before, b) for s, b in zip(sums, evaluated, strict=True)),
            _last(sums[0], third, bases.first),
        )
        first, second = (_hashes(s, before, b)[:-1] for s, b in zip(sums, evaluated, strict=True))
        places = np.arange(before, before + len(first))
        self._sorted = packed = first
        packed <<= _BITS
        packed |= second
        packed &= -1 << self._place_bits
        packed |= places
        packed.sort()
        self._sorted_thirds = packed = _hashes(sums[0], third, bases.first)
        ends = np.arange(third, third + len(packed))
        packed <<= self._place_bits
        packed |= ends
        packed.sort()
        fresh = np.ones(len(packed), dtype=bool)
        fresh[1:] = packed[1:] >> self._place_bits != packed[:-1] >> self._place_bits
        mask = (1 << self._place_bits) - 1
        self.new = int((packed[fresh] & mask).max()) if length >= third and third else 0
        return not before or self._is_exact()

    def _is_exact(self) -> bool:
        """Tell whether tokens with the same hash are the same."""
        import numpy as np

        tokens, before = self.tokens, self._before
        places = self._sorted & ((1 << self._place_bits) - 1)
        keys = self._sorted >> self._place_bits
        same = keys[1:] == keys[:-1]
        earlier, later = places[:-1][same], places[1:][same]
        if before <= _FEW:
            return _agree(tokens, earlier, later, range(1, before + 1))
        if not _agree(tokens, earlier, later, (1,)):
            return False
        # Where the sequences one token before are a pair as well, the last tokens decide.
        partner = np.full(len(tokens) + 1, -1)
        partner[later] = earlier
        heads = partner[later - 1] != earlier - 1
        earlier, later = earlier[heads], later[heads]
        if before < len(earlier):
            return _agree(tokens, earlier, later, range(2, before + 1))
        return all(
            (tokens[a - before : a] == tokens[b - before : b]).all()
            for a, b in zip(earlier.tolist(), later.tolist(), strict=True)
        )

    def group(self, first: int, second: int) -> Group | None:
        """Return what has followed the tokens with these hashes."""
        bits = self._place_bits
        key = (first << _BITS | second) >> bits
        if key in self._groups:
            return self._groups[key]
        start = int(self._sorted.searchsorted(key << bits))
        stop = int(self._sorted.searchsorted((key + 1) << bits))
        if start == stop:
            return None
        if stop - start < _MANY:
            places = self._sorted[start:stop] & ((1 << bits) - 1)
            last = dict(zip(self.tokens[places].tolist(), places.tolist(), strict=True))
            return Group([*last], [*last.values()], min(last.values()))
        return self._gather(key, start, stop)

    def _gather(self, key: int, start: int, stop: int) -> Group:
        """Put a large group together, which is kept."""
        bits = self._place_bits
        places = self._sorted[start:stop] & ((1 << bits) - 1)
        packed = self.tokens[places] << bits | places
        packed.sort()
        ids = packed >> bits
        ends = _ends_of_runs(ids)
        places = packed[ends] & ((1 << bits) - 1)
        group = self._groups[key] = Group(ids[ends], places, int(places.min()))
        return group

    def later(
        self, group: Group, since: int, whitelist: frozenset[int], vocab_size: int
    ) -> Iterator[Ids | list[int]]:
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

    def has_third(self, hashed: int, since: int) -> bool:
        """Tell whether ``third`` tokens with this hash ended at ``since`` or later."""
        if since > len(self.tokens):
            return False
        bits = self._place_bits
        at = int(self._sorted_thirds.searchsorted((hashed << bits) + max(0, since)))
        return at < len(self._sorted_thirds) and int(self._sorted_thirds[at]) >> bits == hashed


def _agree(tokens: Numbers, earlier: Numbers, later: Numbers, backs: Iterable[int]) -> bool:
    """Tell whether the tokens so far before two places each are the same."""
    return not any((tokens[earlier - back] != tokens[later - back]).any() for back in backs)


@lru_cache(maxsize=16)
def _bannable(whitelist: frozenset[int], vocab_size: int) -> Any:
    """Return for each token of the vocabulary whether it may be banned."""
    import numpy as np

    free = np.ones(vocab_size, dtype=bool)
    free[np.fromiter(whitelist, dtype=np.int64, count=len(whitelist))] = False
    return free


_texts: ReadPrompts[Text] = ReadPrompts()


def text_of(
    token_ids: Sequence[int], start: int, before: int, third: int, bases: Bases | None
) -> Text:
    """Return the index of the end of a prompt, the same for all its copies.

    Args:
        token_ids: The prompt; fastest as an array of 64 bits.
        start: Index of the first token that counts.
        before: As for :class:`Text`.
        third: As for :class:`Text`.
        bases: Of hashes that no other index may have; ``None`` for an index that is shared.
    """
    tokens = numbers_of(token_ids, start)
    if bases is not None:
        return Text(tokens.tobytes(), before, third, bases)
    own = _shared_bases()
    return _texts.of(tokens, (before, third), lambda text: Text(text, before, third, own))


def _modulo(numbers: Numbers, rounds: int = 2) -> Numbers:
    """Take numbers modulo the prime, in place; the rest is below 2**31.

    Args:
        numbers: Below 2**62, or 2**54 for one round.
        rounds: Of which each takes its time.
    """
    import numpy as np

    high = np.empty_like(numbers)
    for _ in range(rounds):
        np.right_shift(numbers, _BITS, out=high)
        high *= _SHORT
        numbers &= (1 << _BITS) - 1
        numbers += high
    return numbers


class _Powers:
    """The powers of a number modulo the prime, as many as were asked for at once and more."""

    __slots__ = ("_base", "_powers")

    def __init__(self, base: int) -> None:
        import numpy as np

        self._base = base
        self._powers: Numbers = np.ones(1, dtype=np.int64)

    def first(self, count: int) -> Numbers:
        """Return so many, from the zeroth on."""
        import numpy as np

        while len(self._powers) < count:
            known = self._powers
            more = _modulo(known * pow(self._base, len(known), PRIME))
            self._powers = np.concatenate([known, more])
        return self._powers[:count]


#: Two for each half of the hashes of texts that are shared, and of one that is not.
_powers_of = lru_cache(maxsize=8)(_Powers)


def _sums(coefficients: Numbers, base: int) -> Numbers:
    """Return for each length of a beginning of a text its polynomial, not reduced."""
    import numpy as np

    powers = _powers_of(base).first(len(coefficients))
    sums = np.zeros(len(coefficients) + 1, dtype=np.int64)
    terms = sums[1:]
    np.multiply(coefficients, powers, out=terms)
    np.cumsum(_modulo(terms), out=terms)
    return sums


def _hashes(sums: Numbers, length: int, base: int) -> Numbers:
    """Return the hashes of all sequences of a length, in the order of the text."""
    count = max(0, len(sums) - length)
    backwards = _powers_of(pow(base, -1, PRIME)).first(count)
    hashes = _modulo(sums[length:] - sums[:count], rounds=1)
    hashes *= backwards
    _modulo(hashes)
    hashes -= (hashes >= PRIME) * PRIME
    return hashes


def _last(sums: Numbers, length: int, base: int) -> int:
    """Return the hash of the last tokens of a text."""
    have = len(sums) - 1
    tail = int(sums[have]) - int(sums[max(0, have - length)])
    return tail * pow(base, length - have, PRIME) % PRIME


def _ends_of_runs(numbers: Numbers) -> Any:
    """Return which numbers are followed by another one."""
    import numpy as np

    ends = np.ones(len(numbers), dtype=bool)
    ends[:-1] = numbers[1:] != numbers[:-1]
    return ends
