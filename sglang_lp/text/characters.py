"""Keeping the end of a budget out of the middle of a character.

A token may end inside a UTF-8 character. Among the last tokens of a budget such a token is banned
if its character lacks more bytes than the budget has tokens left. Every byte is a token, so a
character that may begin can be finished in time, and the budget is kept.

With byte fallback (:mod:`sglang_lp.text.byte_runs`) a byte that makes no character spoils the bytes
around it, after the budget as well. The last token of a budget therefore leaves no run broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from sglang_lp.edits.ids import Ids, lasting
from sglang_lp.errors import RequestError
from sglang_lp.text.encoding import known_ids
from sglang_lp.text.utf8 import lacking, unfinished
from sglang_lp.text.vocabulary import Vocabulary, vocabulary_of

#: Most bytes that a character lacks once it has begun.
MOST_LACKING = 3


class Characters:
    """The tokens of a model that end inside a character."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._runs = vocabulary.byte_runs
        missing = [(lacking(tail), ids) for tail, ids in vocabulary.tails.items()]
        self._cutting: list[Ids | list[int]] = []
        for left in range(MOST_LACKING):
            found = sorted(i for lacks, ids in missing if lacks > left for i in ids)
            self._cutting.append(lasting(known_ids(found, vocab_size)))

    def cutting(self, token_ids: Sequence[int], left: int) -> Iterable[int]:
        """Return the tokens after which ``left`` more tokens cannot finish an output's characters.

        These are tokens that end inside a character. If no tokens are left, they are bytes that
        break a run or leave it broken.
        """
        if not left and self._runs.ids:
            return self._runs.breaking(token_ids)
        return self._cutting[left] if left < MOST_LACKING else ()

    def is_inside(self, token_ids: Sequence[int]) -> bool:
        """Tell whether an output ends inside a character, or a run of bytes that is not whole."""
        return is_inside(self._vocabulary, token_ids)


def is_inside(vocabulary: Vocabulary, token_ids: Sequence[int]) -> bool:
    """Tell whether an output ends inside a character, or a run of bytes that is not whole."""
    if vocabulary.byte_runs.ids:
        return bool(vocabulary.byte_runs.left_open(token_ids))
    return unfinished(vocabulary.text(token_ids[-MOST_LACKING:])) > 0


@lru_cache(maxsize=4)
def entering(vocabulary: Vocabulary) -> frozenset[int]:
    """Return the tokens after which alone an output may end inside, if it did not before."""
    return vocabulary.byte_runs.ids.union(*vocabulary.tails.values())


def characters_of(tokenizer: Any, vocab_size: int) -> Characters | None:
    """Return the :class:`Characters` of a model, made once.

    Args:
        tokenizer: The served model's, or ``None``.
        vocab_size: Number of logits in a row.

    Returns:
        ``None`` if no token ends inside a character, or the bytes of the tokens are unknown.
    """
    if tokenizer is None:
        return None
    try:
        vocabulary = vocabulary_of(tokenizer)
    except RequestError:
        return None
    return _characters_of(vocabulary, vocab_size) if vocabulary.tails else None


@lru_cache(maxsize=4)
def _characters_of(vocabulary: Vocabulary, vocab_size: int) -> Characters:
    return Characters(vocabulary, vocab_size)
