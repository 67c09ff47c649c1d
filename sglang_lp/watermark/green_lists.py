"""Green lists: the watermark of Kirchenbauer and others, with the seeds of Transformers.

The context seeds a generator, which divides the vocabulary into a green and a red list; green
tokens get a bias. Kirchenbauer, Geiping, Wen, Katz, Miers and Goldstein, "A Watermark for Large
Language Models", 2023 (arXiv:2301.10226), and Kirchenbauer and others, "On the Reliability of
Watermarks for Large Language Models", 2023 (arXiv:2306.04634).

The lists are those of Transformers' ``WatermarkLogitsProcessor`` on a CPU, whatever the device of
the logits, so that a detector reads the answers of every server.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sglang_lp.errors import RequestError
from sglang_lp.watermark.detection import Detection, binomial_tail

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from sglang_lp.watermark.keys import GreenKey
    from sglang_lp.watermark.marks import Mark, Send

__all__ = ["MAX_TABLE_BYTES", "GreenLists", "is_green"]

#: Most bytes of the green lists that a device keeps, a bit for each token of each list.
MAX_TABLE_BYTES = 1 << 30

#: Largest logits that "selfhash" judges, and length of its permutation: those of Transformers.
_CANDIDATES, _HASHES = 40, 1_000_003

#: Judgements of "selfhash" that are kept.
_KEPT = 1 << 16

#: Lists of a new table. It doubles when it is full.
_FIRST_SLOTS = 64

_SEEDS = 2**64 - 1


def is_green(seed: int, token_id: int, vocab_size: int, size: int) -> bool:
    """Tell whether a token is among the first of the permutation that a seed makes.

    torch shuffles by exchanging each place in turn with a random later place, so this follows one
    token until its place is final, without a shuffle.

    Args:
        seed: Of ``torch.Generator`` on a CPU, whose Mersenne Twister reads 32 bits of it.
        token_id: A number below ``vocab_size``.
        vocab_size: Length of ``torch.randperm``.
        size: Number of first places.
    """
    drawn = np.frombuffer(np.random.RandomState(seed & 0xFFFF_FFFF).bytes(4 * size), dtype="<u4")
    places = np.arange(size, dtype=np.uint32)
    places += drawn % (vocab_size - places)
    first, at = 0, token_id
    while not (places[first : min(at, size)] == at).any():
        if at >= size:
            return False
        if places[at] == at:
            return True
        first, at = at + 1, int(places[at])
    return True


class GreenLists:
    """Green lists with a key.

    Attributes:
        name: As for :class:`~sglang_lp.watermark.marks.Scheme`, like the others.
        context_size: Number of tokens that have to come before a marked one.
        window: 0: the papers mark a context that comes again.
        biases: True: greedy answers change as well.
        candidates: 40 for "selfhash", as in Transformers; 0 for "lefthash".
        bias: Added to the logits of green tokens after the temperature.
        digest: Of the key.
    """

    name = "kgw"
    window = 0
    biases = True

    def __init__(self, key: GreenKey) -> None:
        """Take a key that was read from its file."""
        self._key = key
        self.context_size = key.context_width
        self.bias = key.bias
        self.digest = key.digest()
        self._hashes_itself = key.seeding_scheme == "selfhash"
        self.candidates = _CANDIDATES if self._hashes_itself else 0
        #: By device and vocabulary.
        self._tables: dict[tuple[torch.device, int], _Table] = {}
        #: Of this object, so that it ends with the key.
        self._judge = lru_cache(_KEPT)(is_green)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a watermark key stays in its process")

    def marks(self, vocab_size: int) -> bool:
        """Tell whether a list has a green token."""
        return self._size(vocab_size) > 0

    def _size(self, vocab_size: int) -> int:
        """Return the number of green tokens of a list."""
        return int(vocab_size * self._key.greenlist_ratio)

    def _seed(self, token_id: int) -> int:
        """Return the seed of "lefthash"."""
        return self._key.hashing_key * token_id % _SEEDS

    @cached_property
    def _hashes(self) -> NDArray[np.int64]:
        """The permutation from which "selfhash" takes the hashes of tokens."""
        import torch

        generator = torch.Generator()
        generator.manual_seed(self._key.hashing_key)
        hashes: NDArray[np.int64] = torch.randperm(_HASHES, generator=generator).numpy() + 1
        return hashes

    def green(self, context: Sequence[int], token_ids: Sequence[int], vocab_size: int) -> list[int]:
        """Select the tokens that are green after a context.

        Args:
            context: The tokens before, oldest first.
            token_ids: The tokens that may come next.
            vocab_size: Number of logits in a row.
        """
        size = self._size(vocab_size)
        return [
            one
            for one in token_ids
            if self._judge(self._seed_for(context, one), one, vocab_size, size)
        ]

    def _seed_for(self, context: Sequence[int], token_id: int) -> int:
        """Return the seed of the list that decides on a token after a context."""
        if not self._hashes_itself:
            return self._seed(context[-1])
        # The token itself is the last of its context.
        window = [*context[len(context) + 1 - self.context_size :], token_id]
        hashes = self._hashes[[one % _HASHES for one in window]]
        return int((np.int64(self._key.hashing_key) * hashes * hashes[-1]).min()) % _SEEDS

    def pack(
        self, rows: Sequence[int], marks: Sequence[Mark], logits: torch.Tensor, send: Send
    ) -> NDArray[np.int64]:
        """Return rows, places of their lists in the table, and biases."""
        vocab_size = logits.shape[1]
        key = logits.device, vocab_size
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Table(*key)
        slots = table.find([mark.context[-1] for mark in marks], self._list, send)
        biases = np.zeros(len(rows) + len(rows) % 2, dtype=np.float32)
        biases[: len(rows)] = [self.bias * mark.sampling.temperature for mark in marks]
        return np.concatenate((np.array([*rows, *slots], dtype=np.int64), biases.view(np.int64)))

    def _list(self, token_id: int, vocab_size: int) -> NDArray[np.uint8]:
        """Return the green list after a token, a bit for each token."""
        import torch

        generator = torch.Generator()
        generator.manual_seed(self._seed(token_id))
        green = torch.randperm(vocab_size, generator=generator)[: self._size(vocab_size)]
        bits = np.zeros(vocab_size, dtype=bool)
        bits[green.numpy()] = True
        return np.packbits(bits, bitorder="little")

    def apply(self, logits: torch.Tensor, numbers: torch.Tensor, count: int) -> None:
        """Add the bias to the green tokens of rows."""
        import torch

        table = self._tables[logits.device, logits.shape[1]]
        rows, slots = numbers[:count], numbers[count : 2 * count]
        biases = numbers[2 * count :].view(torch.float32)[:count, None]
        green = table.bits_of(slots)[:, : logits.shape[1]]
        # Adding -0.0 keeps the bits of the other logits.
        logits.index_add_(0, rows, torch.where(green, biases, -0.0).to(logits.dtype))

    def detect(self, token_ids: Sequence[int], vocab_size: int | None) -> Detection:
        """Test the number of green tokens.

        Without a watermark each token is green with the probability ``size / vocab``. A token of a
        list counts once, because a second look is no new evidence (2306.04634 counts each n-gram
        once; contexts of "selfhash" that differ may have one list). So these are independent
        trials, except that several tokens of one list are drawn without replacement, which lowers
        the variance. The p-value is the exact tail of the binomial distribution; ``z`` is the
        statistic of 2301.10226, equation 3, with the exact ratio of the lists.

        Args:
            token_ids: The answer.
            vocab_size: Number of logits in a row of the model that wrote it.

        Raises:
            RequestError: No ``vocab_size``, or a token id that is not below it.
        """
        if vocab_size is None:
            raise RequestError(
                "vocab_size: expected the number of logits of the model, on which green lists "
                "depend, got none; name the model, or give the number"
            )
        if any(not 0 <= token_id < vocab_size for token_id in token_ids):
            raise RequestError(
                f"tokens: expected ids from 0 to {vocab_size - 1}, got others; name the model that "
                "wrote the text"
            )
        start = self.context_size - self._hashes_itself
        pairs = {
            (
                self._seed_for(token_ids[max(0, at - self.context_size) : at], token_ids[at]),
                token_ids[at],
            )
            for at in range(start, len(token_ids))
        }
        size = self._size(vocab_size)
        if not self.marks(vocab_size):
            raise RequestError(
                f"vocab_size: expected one of which this key's greenlist_ratio leaves a green "
                f"token or more, got {vocab_size}"
            )
        green = sum(self._judge(*pair, vocab_size, size) for pair in pairs)
        expected, count = size / vocab_size, len(pairs)
        if not count:
            return Detection(self.name, 0, 0.0, expected, 0.0, 1.0)
        z = (green - expected * count) / math.sqrt(count * expected * (1 - expected))
        p_value = binomial_tail(green, count, expected)
        return Detection(self.name, count, green / count, expected, z, p_value)


class _Table:
    """The green lists on one device, by the token before; the oldest make room for new ones."""

    def __init__(self, device: torch.device, vocab_size: int) -> None:
        import torch

        self._device, self._vocab_size = device, vocab_size
        self._bytes = -(-vocab_size // 64) * 8  # whole integers of 64 bits
        self._most = max(1, min(vocab_size, MAX_TABLE_BYTES // self._bytes))
        self._slots: OrderedDict[int, int] = OrderedDict()
        count = min(_FIRST_SLOTS, self._most)
        self._lists = torch.empty((count, self._bytes), dtype=torch.uint8, device=device)
        self._bits = 1 << torch.arange(8, dtype=torch.uint8, device=device)

    def find(self, token_ids: Sequence[int], make: Any, send: Send) -> list[int]:
        """Return the place of the list after each token; make and send the lists that lack.

        Args:
            token_ids: The tokens before.
            make: Makes the list after a token.
            send: Sends the new lists, all at once.
        """
        slots = self._slots
        wanted = dict.fromkeys(token_ids)
        missing = [token_id for token_id in wanted if token_id not in slots]
        if missing:
            for token_id in wanted.keys() & slots.keys():
                slots.move_to_end(token_id)  # else the new ones take their places
            try:
                self._add(missing, make, send)
            except BaseException:
                slots.clear()  # some may be places without their lists
                raise
        return [slots[token_id] for token_id in token_ids]

    def _add(self, missing: Sequence[int], make: Any, send: Send) -> None:
        import torch

        slots = self._slots
        self._grow(len(slots) + len(missing))
        new = np.zeros((len(missing), 1 + self._bytes // 8), dtype=np.int64)
        for one, token_id in zip(new, missing, strict=True):
            full = len(slots) == len(self._lists)
            one[0] = slots[token_id] = slots.popitem(last=False)[1] if full else len(slots)
            green = make(token_id, self._vocab_size)
            one[1:].view(np.uint8)[: len(green)] = green
        sent = send(torch.from_numpy(new), self._device)
        self._lists.index_copy_(0, sent[:, 0], sent[:, 1:].view(torch.uint8))

    def _grow(self, count: int) -> None:
        """Make room for a number of lists, as far as there may be room."""
        have = len(self._lists)
        if count <= have or have == self._most:
            return
        more = self._lists.new_empty((min(self._most, max(count, 2 * have)), self._bytes))
        more[:have] = self._lists
        self._lists = more

    def bits_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Return lists as truth values, shape ``(slots, 8 * bytes)``."""
        found = self._lists.index_select(0, slots)
        return (found[:, :, None] & self._bits).ne(0).view(len(slots), -1)
