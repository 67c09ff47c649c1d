"""The tokens of a model as bytes: a trie for walks, and the fewest tokens that spell a text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from sglang_lp.closing.keeping import Keeping

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Longest token, in bytes, that plans are spelled with; longer ones are runs of blanks.
_LONGEST = 32


class Trie(NamedTuple):
    """The bytes of all tokens as a trie in flat arrays. Node 0 is the root.

    Attributes:
        first: First child of each node; the children of a node are adjacent.
        counts: Number of children of each node.
        byte: The byte that leads to each node.
        token_ids: Token ids in the order of the nodes at which they end.
        ending: Index of the first of ``token_ids`` that ends at each node.
        endings: Number of ``token_ids`` that end at each node.
    """

    first: NDArray[np.int32]
    counts: NDArray[np.int32]
    byte: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    ending: NDArray[np.int32]
    endings: NDArray[np.int32]

    def children(self, nodes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the children of some nodes, those of one node together."""
        return _ranges(self.first[nodes], self.counts[nodes])

    def tokens(self, nodes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the token ids that end at some nodes, those of one node together."""
        return self.token_ids[_ranges(self.ending[nodes], self.endings[nodes])]


class GrammarVocabulary:
    """The tokens that a grammar may use, each with its bytes.

    Args:
        spelled: Bytes of each token id. A token without bytes is in no text.
        stops: Token ids that end an answer.
        banned: Token ids that no text may use.
        base: The vocabulary of which this is a part; left out: of none.

    Attributes:
        spelled: Bytes of each token id.
        stops: Token ids that end an answer, ascending.
        size: Number of token ids.
        ids: The usable tokens, in the order of their bytes.
        trie: The usable tokens as a trie.
        single: The bytes that a token of their own spells.
        longest: Number of bytes of the longest token that plans use.
        stop_row: The end tokens, packed.
        key: Its key in ``keeping``.
        keeping: Keeps tables for grammars with this vocabulary.
    """

    def __init__(
        self,
        spelled: Sequence[bytes],
        stops: Iterable[int],
        banned: Collection[int] = (),
        base: GrammarVocabulary | None = None,
    ) -> None:
        self.spelled = spelled
        self.key = object()
        self.keeping: Keeping[Any] = Keeping() if base is None else base.keeping
        self._base = self if base is None else base
        #: Parts of this vocabulary that some grammar uses, by their banned tokens.
        self._parts: WeakValueDictionary[frozenset[int], GrammarVocabulary] = WeakValueDictionary()
        self._lock = Lock()
        self.stops = sorted(set(stops) - set(banned))
        self.size = len(spelled)
        self._banned = frozenset(banned)
        unused = self._banned | set(self.stops)
        ordered = _sorted(spelled) if base is None else base.ids.tolist()
        ids = [token for token in ordered if token not in unused]
        self.ids: NDArray[np.int32] = np.array(ids, np.int32)
        self._ids: dict[bytes, int] = {}
        for token in reversed(ids):  # of equal texts the smallest id
            if len(spelled[token]) <= _LONGEST:
                self._ids[spelled[token]] = token
        #: Lengths of the tokens that begin with one or two bytes.
        lengths: dict[bytes, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {prefix: sorted(known) for prefix, known in lengths.items()}
        self.single = frozenset(text[0] for text in self._ids if len(text) == 1)
        self.longest = max((known[-1] for known in self._lengths.values()), default=1)
        self.trie = make_trie(spelled, ids)
        self.stop_row = packed(np.isin(np.arange(self.size), self.stops))

    @classmethod
    def of_tokenizer(cls, info: Any, stops: Iterable[int] | None) -> GrammarVocabulary:
        """Return the vocabulary of xgrammar's ``TokenizerInfo``.

        Args:
            info: The tokenizer.
            stops: Token ids that end an answer; ``None`` for the tokenizer's.
        """
        spelled = [*info.decoded_vocab]
        spelled += [b""] * (info.vocab_size - len(spelled))
        for token in info.special_token_ids:
            spelled[token] = b""
        return cls(spelled, info.stop_token_ids if stops is None else stops)

    def without(self, banned: Collection[int]) -> GrammarVocabulary:
        """Return the vocabulary without some tokens; itself if these are banned already.

        Grammars with the same tokens share one vocabulary: that of 150,000 tokens has 20 MB.
        """
        if self._banned.issuperset(banned):
            return self
        base, banned = self._base, self._banned.union(banned)
        with base._lock:  # noqa: SLF001 - the same class
            found = base._parts.get(banned)  # noqa: SLF001
            if found is None:
                found = GrammarVocabulary(self.spelled, base.stops, banned, base)
                base._parts[banned] = found  # noqa: SLF001
            return found

    def containing(self, some: Collection[int]) -> frozenset[int]:
        """Return the tokens that contain one of some bytes."""
        found = frozenset(some)
        return frozenset(i for i, text in enumerate(self.spelled) if not found.isdisjoint(text))

    def tokens_at(self, text: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield the tokens that a text has at a place, each with its length, the shortest first."""
        lengths, left = self._lengths, len(text) - start
        for prefix in (text[start : start + 1], text[start : start + 2]):
            for length in lengths.get(prefix, ()):
                token = self._ids.get(text[start : start + length]) if length <= left else None
                if token is not None:
                    yield token, length


def packed(chosen: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return a set of token ids as xgrammar packs it: bit ``i % 32`` of word ``i // 32``.

    Args:
        chosen: Whether each token id is in the set, shape ``(tokens,)``.
    """
    row = np.zeros(-(-len(chosen) // 32) * 4, np.uint8)
    part = np.packbits(chosen, bitorder="little")
    row[: len(part)] = part
    return row.view(np.uint32)


def _sorted(spelled: Sequence[bytes]) -> list[int]:
    """Return the token ids with bytes in the order of their bytes; equal ones by their ids.

    One sort of all would hold Python's lock for all of its time, and no step runs meanwhile.
    """
    parts: dict[bytes, list[int]] = {}
    for token, text in enumerate(spelled):
        if text:
            parts.setdefault(text[:2], []).append(token)
    return [
        token
        for prefix in sorted(parts)
        for token in sorted(parts[prefix], key=spelled.__getitem__)
    ]


def make_trie(spelled: Sequence[bytes], ids: Sequence[int]) -> Trie:
    """Return the trie of some tokens, made one depth at a time.

    Args:
        spelled: Bytes of each token id.
        ids: The tokens, each with bytes, in the order of these.
    """
    texts = [spelled[token] for token in ids]
    lengths = np.array([len(text) for text in texts], np.int64)
    flat = np.frombuffer(b"".join(texts), np.uint8).astype(np.int32)
    offsets = np.cumsum(lengths) - lengths
    at = np.zeros(len(texts), np.int32)
    parents, byte, size = [np.zeros(1, np.int32)], [np.zeros(1, np.int32)], 1
    for depth in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > depth)
        parent, letter = at[rows], flat[offsets[rows] + depth]
        new = np.ones(len(rows), bool)
        new[1:] = (parent[1:] != parent[:-1]) | (letter[1:] != letter[:-1])
        at[rows] = size + np.cumsum(new) - 1
        parents.append(parent[new])
        byte.append(letter[new])
        size += int(new.sum())
    count = np.bincount(np.concatenate(parents)[1:], minlength=size).astype(np.int32)
    # Nodes of a depth are in the order of their parents, so children are adjacent.
    first = (1 + np.cumsum(count) - count).astype(np.int32)
    order = np.argsort(at, kind="stable")
    endings = np.bincount(at, minlength=size).astype(np.int32)
    ending = (np.cumsum(endings) - endings).astype(np.int32)
    token_ids = np.asarray(ids, np.int32)[order]
    return Trie(first, count, np.concatenate(byte), token_ids, ending, endings)


def _ranges(first: NDArray[np.int32], count: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the numbers of several ranges, one after the other.

    Args:
        first: First number of each.
        count: How many numbers each has.
    """
    offsets = np.cumsum(count, dtype=np.int32) - count
    total = int(count.sum())
    return np.repeat(first - offsets, count) + np.arange(total, dtype=np.int32)
