"""Text that hardly says anything new: most n-grams of a window come again.

An n-gram of the window is new if it does not occur earlier in the window. A loop with small changes
repeats no pattern exactly, and still has few new n-grams.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

#: N-grams are kept as bytes, so that they are found exactly; a copy of the window is made for
#: each drafted token.
NgramSize = Annotated[int, Meta(ge=1, le=16)]
WindowSize = Annotated[int, Meta(ge=2, le=512)]
Share = Annotated[float, Meta(gt=0, le=1)]

#: The sizes that docs/evidence.md measures.
NGRAM_SIZE, WINDOW_SIZE = 4, 128


def check_window(ngram_size: int, window_size: int) -> None:
    """Refuse a window in which no n-gram fits.

    Raises:
        ValueError: ``window_size`` is less than ``ngram_size``.
    """
    if window_size < ngram_size:
        raise ValueError(
            f"window_size: expected at least ngram_size, got {window_size} for {ngram_size}-grams"
        )


def few_are_new(token_ids: Sequence[int], ngram_size: int, window_size: int, share: float) -> bool:
    """Tell whether the last tokens fill a window of which few n-grams are new.

    Args:
        token_ids: The tokens, oldest first.
        ngram_size: Tokens of an n-gram.
        window_size: Tokens of the window, at least ``ngram_size``.
        share: The n-grams are few if they are fewer than this share of all.
    """
    if len(token_ids) < window_size:
        return False
    window = token_ids[-window_size:]
    new = {*zip(*(window[at:] for at in range(ngram_size)), strict=False)}
    return len(new) < share * (window_size - ngram_size + 1)


class Novelty:
    """The newest tokens, and how often each n-gram of them occurs.

    Args:
        ngram_size: Tokens of an n-gram.
        window_size: Tokens of the window, at least ``ngram_size``.
    """

    __slots__ = ("_counts", "_ngram_size", "_tokens", "_window_size")

    def __init__(self, ngram_size: int, window_size: int) -> None:
        self._ngram_size, self._window_size = ngram_size, window_size
        #: Up to two windows; the last window counts.
        self._tokens = array("q")
        self._counts: dict[bytes, int] = {}

    def fork(self) -> Novelty:
        """Return a copy that grows on its own."""
        forked = Novelty(self._ngram_size, self._window_size)
        forked._tokens = self._tokens[-self._window_size :]
        forked._counts = self._counts.copy()
        return forked

    def push(self, token_id: int) -> None:
        """Append a token."""
        tokens, size, counts = self._tokens, self._ngram_size, self._counts
        oldest = len(tokens) - self._window_size
        if oldest >= 0:
            ngram = tokens[oldest : oldest + size].tobytes()
            if counts[ngram] > 1:
                counts[ngram] -= 1
            else:
                del counts[ngram]
        tokens.append(token_id)
        if len(tokens) >= size:
            ngram = tokens[-size:].tobytes()
            counts[ngram] = counts.get(ngram, 0) + 1
        if oldest > self._window_size:
            del tokens[: -self._window_size]

    @property
    def new(self) -> int:
        """How many n-grams of the window are new."""
        return len(self._counts)

    def few_are_new(self, share: float) -> bool:
        """Tell whether the window is full and fewer than this share of its n-grams are new."""
        return len(self._tokens) >= self._window_size and len(self._counts) < share * (
            self._window_size - self._ngram_size + 1
        )

    def repeating(self) -> array[int]:
        """Return the tokens that would repeat an n-gram of the window."""
        import numpy as np

        window = np.frombuffer(self._tokens[-self._window_size :], dtype=np.int64)
        before = self._ngram_size - 1
        follows = np.ones(len(window) - before, dtype=np.bool_)
        for at in range(before):
            follows &= window[at : at + len(follows)] == window[len(window) - before + at]
        return array("q", np.unique(window[before:][follows]).tobytes())
