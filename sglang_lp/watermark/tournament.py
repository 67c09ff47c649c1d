"""SynthID-Text: the tournament watermark of Dathathri and others, with the hashes of Transformers.

The context and the key give each token ``depth`` random bits, its g-values. A tournament over them
chooses the next token: each layer moves probability to tokens whose bit is 1, and the expectation
over keys is the distribution of the model. Dathathri and others, "Scalable watermarking for
identifying large language model outputs", Nature 634, 2024 (doi:10.1038/s41586-024-08025-4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from sglang_lp.watermark.detection import Detection, normal_tail

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from sglang_lp.watermark.keys import TournamentKey
    from sglang_lp.watermark.marks import Mark, Send

__all__ = ["CANDIDATES", "Tournament"]

#: Likeliest tokens of a row that take part. The others keep their logits: who wins the tournament
#: does not change the probability of all who take part.
CANDIDATES = 128

#: The hash is the linear congruential generator of Knuth's MMIX, as in Transformers.
_MULTIPLIER = 6364136223846793005
_BITS = 1 << 64

#: Weights of the first and the last layer in the score: those of the paper's weighted mean.
_WEIGHTS = 10.0, 1.0


def _signed(number: int) -> int:
    """Return the lowest 64 bits of a number, as torch and numpy keep them."""
    return (number + (_BITS >> 1)) % _BITS - (_BITS >> 1)


#: Least probability of a token that lost: the smallest normal number of 32 bits.
_LEAST = 2.0**-126

_SQUARE = _signed(_MULTIPLIER**2)


class Tournament:
    """A tournament with its keys, one for each layer.

    Attributes:
        name: As for :class:`~sglang_lp.watermark.marks.Scheme`, like the others.
        context_size: ``ngram_len - 1``.
        window: ``context_history_size``: within so many steps a context marks one token.
        biases: False: it chooses among tokens that may be sampled, so greedy answers stay.
        candidates: 0: the device finds them.
        bias: 0: nothing is added.
        digest: Of the key.
    """

    name = "synthid"
    biases = False
    candidates = 0
    bias = 0.0

    def __init__(self, key: TournamentKey) -> None:
        """Take a key that was read from its file."""
        self._key = key
        self.digest = key.digest()
        self.context_size = key.ngram_len - 1
        self.window = key.context_history_size
        #: On each device the table of bits, float32, and the terms of the layers in the hash.
        self._sent: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a watermark key stays in its process")

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        """The bits, which the hashes look up."""
        import torch

        generator = torch.Generator().manual_seed(self._key.sampling_table_seed)
        bits = torch.randint(0, 2, (self._key.sampling_table_size,), generator=generator)
        return bits.float().numpy()

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        """The term of each layer in the hash, shape ``(depth,)``."""
        return np.array([_signed(key * _MULTIPLIER) for key in self._key.keys], dtype=np.int64)

    def _bases(self, contexts: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Return the term of each context in the hash; all contexts are equally long.

        A hash goes from number to number: ``h = (h + number) * multiplier + 1``, with the context,
        the token and the key of the layer. So the last two steps are ``token * multiplier ** 2``
        plus a number for the context and one for the layer.
        """
        hashes = np.ones(len(contexts), dtype=np.int64)
        tokens = np.fromiter(chain.from_iterable(contexts), np.int64)
        for column in tokens.reshape(len(contexts), self.context_size).T:
            hashes = (hashes + column) * _MULTIPLIER + 1
        bases: NDArray[np.int64] = hashes * np.int64(_SQUARE) + np.int64(_MULTIPLIER + 1)
        return bases

    def g_values(
        self, contexts: Sequence[Sequence[int]], token_ids: Sequence[int]
    ) -> NDArray[np.float32]:
        """Return the bits of tokens, each after its own context: shape ``(tokens, depth)``."""
        tokens = np.array(token_ids, dtype=np.int64) * np.int64(_SQUARE)
        hashes = (self._bases(contexts) + tokens)[:, None] + self._offsets
        found: NDArray[np.float32] = self._table[hashes % len(self._table)]
        return found

    def marks(self, vocab_size: int) -> bool:  # noqa: ARG002 - any two tokens have a winner
        """Tell that the key marks the answers of every model."""
        return True

    def green(self, context: Sequence[int], token_ids: Sequence[int], vocab_size: int) -> list[int]:
        """Return no token: the scheme has no lists."""
        del context, token_ids, vocab_size
        return []

    def pack(
        self, rows: Sequence[int], marks: Sequence[Mark], logits: torch.Tensor, send: Send
    ) -> NDArray[np.int64]:
        """Return rows, contexts and sampling parameters."""
        import torch

        if logits.device not in self._sent:
            whole = torch.from_numpy(np.concatenate((self._offsets, self._table.astype(np.int64))))
            sent = send(whole, logits.device)
            depth = len(self._offsets)
            self._sent[logits.device] = sent[depth:].float(), sent[:depth, None, None]
        bases = self._bases([mark.context for mark in marks])
        sampling = np.fromiter(chain.from_iterable(mark.sampling for mark in marks), np.float32)
        floats = sampling.view(np.int64)  # two in an integer
        return np.concatenate((np.array(rows, dtype=np.int64), bases, floats))

    def apply(self, logits: torch.Tensor, numbers: torch.Tensor, count: int) -> None:
        """Let the likeliest tokens that a request may sample play in its row.

        SGLang divides by the temperature and applies ``top_k``, ``top_p`` and ``min_p`` after the
        edits. The tournament has to come after all of these, so it applies them to the row first.
        """
        import torch

        table, offsets = self._sent[logits.device]
        rows, bases = numbers[:count], numbers[count : 2 * count, None]
        floats = numbers[2 * count :].view(torch.float32).view(count, 4, 1)
        temperature, top_k, top_p, min_p = floats.unbind(1)
        own = logits.index_select(0, rows)
        logprobs = torch.log_softmax(own / temperature, 1, dtype=torch.float32)
        values, ids = logprobs.topk(min(CANDIDATES, own.shape[1]))
        # The tokens that SGLang's sampler would keep.
        probs = values.exp()
        before = probs.cumsum(1).sub_(probs)
        order = torch.arange(values.shape[1], device=values.device)
        keeps = (order < top_k) & (before <= top_p) & (values >= values[:, :1] + min_p.log())
        # If it would drop one of these, it would also drop all that come after them. A row without
        # a number keeps none, and does not change.
        kept = keeps.sum(1, keepdim=True)
        cuts = (kept > 0) & (kept < values.shape[1])
        start = torch.softmax(values.masked_fill(~keeps, -math.inf), 1)
        hashes = torch.add(bases, ids, alpha=_SQUARE) + offsets
        g_values = table[hashes.remainder_(len(table))]
        factors = g_values + 1
        end = start.clone()
        for bits, factor in zip(g_values.unbind(), factors.unbind(), strict=True):
            end *= factor.sub_((bits * end).sum(1, keepdim=True))
        # Rounding can leave 0 or less to a token that lost; its logit stays finite.
        lost = (start / end.clamp_(min=_LEAST)).log()
        # Adding -0.0 keeps the bits of a logit.
        moved = torch.where(start > 0, -lost, -0.0) * temperature
        new = own.gather(1, ids).float() + moved
        new.masked_fill_(cuts & ~keeps, -math.inf)
        own.masked_fill_(cuts, -math.inf).scatter_(1, ids, new.to(own.dtype))
        logits.index_copy_(0, rows, own)

    def detect(self, token_ids: Sequence[int], vocab_size: int | None) -> Detection:
        """Test the weighted mean of the g-values.

        Without a watermark each g-value is 1 with the share of ones in the table. The weights of
        the layers fall in equal steps from 10 to 1 (weighted mean, in the paper's supplementary
        information), and add up to ``depth``. A context that comes again within
        ``context_history_size`` tokens does not count, as it was not marked, nor does an n-gram
        that was counted. So the score is a mean of independent bits with the variance
        ``share * (1 - share) * sum(weights ** 2) / (tokens * depth ** 2)``; its p-value is the tail
        of the normal distribution, which the sum of ``tokens * depth`` bits is close to.

        Args:
            token_ids: The answer.
            vocab_size: Not needed.
        """
        del vocab_size
        size, last, grams = self.context_size, dict[tuple[int, ...], int](), set[tuple[int, ...]]()
        for at in range(size, len(token_ids)):
            context = tuple(token_ids[at - size : at])
            if at - last.get(context, -self.window - 1) > self.window:
                grams.add((*context, token_ids[at]))
            last[context] = at
        depth, count = len(self._offsets), len(grams)
        expected = float(self._table.mean())
        if not count:
            return Detection(self.name, 0, 0.0, expected, 0.0, 1.0)
        values = self.g_values([gram[:-1] for gram in grams], [gram[-1] for gram in grams])
        weights = np.linspace(*_WEIGHTS, depth)
        weights *= depth / weights.sum()
        score = float((values.mean(0) * weights).mean())
        variance = expected * (1 - expected) * float((weights**2).sum()) / (count * depth**2)
        z = (score - expected) / math.sqrt(variance)
        return Detection(self.name, count, score, expected, z, normal_tail(z))
