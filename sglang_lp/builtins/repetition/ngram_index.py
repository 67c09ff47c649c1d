"""The n-grams of a prompt, looked up by their first n - 1 tokens.

Built with numpy and torch, because a prompt has up to 131,072 tokens and the batch waits; shared by
the copies of a prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of
from sglang_lp.builtins.repetition.fingerprints import (
    Fingerprints,
    Sequences,
    draw,
    in_order,
)
from sglang_lp.caches import shared_by_copies
from sglang_lp.processor import lasting

if TYPE_CHECKING:
    from sglang_lp.builtins.prompt.prompts import Numbers

#: Fewest followers that are gathered with numpy instead of a dict.
_MANY = 64

#: Fewest followers that are gathered with the index instead of at the first look-up.
_VERY_MANY = 8_192

#: Tokens after which followers that leave a window are gathered anew, and how many such gatherings
#: a text keeps: copies of a request are at about the same index.
_STRIDE = 256
_MAX_GATHERINGS = 4


class PrefixFollowers(NamedTuple):
    """The tokens that have followed the same n - 1 tokens.

    Attributes:
        ids: The followers, each once. An array of numpy if there are many, else a list.
        places: For each follower the index of its last occurrence.
        oldest: The smallest of ``places``.
    """

    ids: Any
    places: Any
    oldest: int


class FollowersSince(NamedTuple):
    """Followers, out of very many, that are in a window and may be banned.

    Attributes:
        ids: Followers that stay in the window for at least ``_STRIDE`` tokens.
        leaving: The other followers.
        places: The indices of ``leaving``.
    """

    ids: Collection[int]
    leaving: Numbers
    places: Numbers


class NgramIndex:
    """The n-grams of a text.

    Attributes:
        prompt: The bytes of the text's tokens.
        tokens: The text, shape ``(length,)``.
        last_new_probe_end: Index after the last probe, of ``probe_size`` tokens, that has not come
            before in the text; 0 without one.
    """

    __slots__ = (
        "__weakref__",
        "_gathered",
        "_groups",
        "_probes",
        "_sequences",
        "last_new_probe_end",
        "prompt",
        "tokens",
    )

    def __init__(self, prompt: bytes, before: int, probe_size: int) -> None:
        """Index a text.

        Args:
            prompt: The bytes of its tokens, 64 bits each.
            before: The n - 1 tokens by which an n-gram is looked up.
            probe_size: Tokens of a probe, which :meth:`has_probe` finds; at most ``before``.
        """
        import numpy as np

        self.prompt = prompt
        self.tokens: Numbers = np.frombuffer(prompt, dtype=np.int64)
        #: Large groups that were looked up, by the place of their first sequence.
        self._groups: dict[int, PrefixFollowers] = {}
        self._gathered: dict[tuple[Any, ...], FollowersSince] = {}
        wanted = [before] if probe_size == before else [before, probe_size]
        for turn in count():
            fingerprints = Fingerprints(before, draw(prompt, turn))
            found = fingerprints.of_all(self.tokens, wanted)
            self._sequences = Sequences(fingerprints, next(found), before)
            if self._sequences.are_told_apart(self.tokens):
                break
        # Not checked: a new probe that is taken for an earlier one only wakes a row too soon.
        probes = next(found, None)
        self._probes = self._sequences
        if probes is not None:
            self._probes = Sequences(fingerprints, probes, probe_size)
        (firsts,) = self._probes.firsts.nonzero()
        self.last_new_probe_end = int(self._probes.ends(firsts).max(initial=0))
        if len(self._sequences.firsts) < _VERY_MANY:
            return
        # The largest groups are gathered now, while no step waits.
        (begins,) = self._sequences.firsts.nonzero()
        lengths = np.diff(begins, append=len(self._sequences.firsts))
        for place in (lengths >= _VERY_MANY).nonzero()[0].tolist():
            begin = int(begins[place])
            self._gather(begin, begin + int(lengths[place]))

    def followers(self, tokens: array[int]) -> PrefixFollowers | None:
        """Return the followers of these ``before`` tokens, ``None`` if there are none."""
        begin, stop = self._sequences.find(tokens)
        if begin == stop:
            return None
        places = self._sequences.few_ends(begin, min(stop, begin + _MANY + 1))
        if self.prompt[8 * (places[0] - len(tokens)) : 8 * places[0]] != tokens.tobytes():
            return None
        if begin in self._groups:
            return self._groups[begin]
        if places[-1] == len(self.tokens):  # no token follows
            places.pop()
        if not places:
            return None
        if len(places) >= _MANY:
            return self._gather(begin, stop)
        following = self.tokens.data
        last = {following[place]: place for place in places}
        return PrefixFollowers([*last], [*last.values()], min(last.values()))

    def _followed(self, begin: int, stop: int) -> Numbers:
        """Return the indices of the followers; the end of the text has none."""
        places = self._sequences.ends(slice(begin, stop))
        return places[: len(places) - int(places[-1] == len(self.tokens))]

    def _gather(self, begin: int, stop: int) -> PrefixFollowers:
        """Return a large group, which is kept."""
        import numpy as np

        bits = len(self.tokens).bit_length()
        places = self._followed(begin, stop)
        packed = self.tokens[places]
        packed <<= bits
        packed |= places
        packed = in_order(packed)
        ids = packed >> bits
        last = np.ones(len(ids), dtype=bool)
        np.not_equal(ids[1:], ids[:-1], out=last[:-1])
        places = packed[last] & ((1 << bits) - 1)
        group = self._groups[begin] = PrefixFollowers(ids[last], places, int(places.min()))
        return group

    def followers_since(
        self, group: PrefixFollowers, since: int, whitelist: frozenset[int], vocab_size: int
    ) -> Iterator[Collection[int]]:
        """Yield the followers of a large group since an index, equal objects for all copies.

        Args:
            group: The followers from :meth:`followers`, with arrays.
            since: The index of the first follower that counts.
            whitelist: Tokens to leave out.
            vocab_size: Tokens from here on are left out as well.
        """
        until = 0 if since <= group.oldest else since + -since % _STRIDE
        key = id(group.ids), until, whitelist, vocab_size
        found = self._gathered.get(key)
        if found is None:
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
            found = self._gathered[key] = FollowersSince(lasting(kept), *leaving)
            if len(self._gathered) > _MAX_GATHERINGS:
                del self._gathered[next(iter(self._gathered))]
        yield found.ids
        if until:
            yield found.leaving[found.places >= since].tolist()

    def has_probe(self, tokens: array[int], since: int) -> bool:
        """Tell whether this probe ended at ``since`` or later.

        Compares fingerprints only, so in one of thousands of texts it is true for other tokens.
        """
        if since > len(self.tokens):
            return False
        begin, stop = self._probes.find(tokens)
        return begin < stop and self._probes.few_ends(stop - 1, stop)[0] >= since


@shared_by_copies
def _bannable(whitelist: frozenset[int], vocab_size: int) -> Any:
    """Return for each token of the vocabulary whether it may be banned."""
    import numpy as np

    free = np.ones(vocab_size, dtype=bool)
    free[np.fromiter(whitelist, dtype=np.int64, count=len(whitelist))] = False
    return free


_indexes: ReadPrompts[NgramIndex] = ReadPrompts()


def index_of(token_ids: Sequence[int], start: int, before: int, probe_size: int) -> NgramIndex:
    """Return the index of the end of a prompt, the same object for all its copies.

    Args:
        token_ids: The prompt; fastest as an array of 64 bits.
        start: Index of the first token that counts.
        before: As for :class:`NgramIndex`.
        probe_size: As for :class:`NgramIndex`.
    """
    tokens = numbers_of(token_ids, start)
    return _indexes.of(
        tokens, (before, probe_size), lambda text: NgramIndex(text, before, probe_size)
    )
