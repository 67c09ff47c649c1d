"""Keeping the end of a budget out of the middle of a character.

A token may end inside a UTF-8 character. In the last tokens of a budget such a token is banned if
its character lacks more bytes than there are tokens left: as every byte is a token, a character
that may begin can be finished in time, and the budget stays what it is.

A byte that makes no character takes back those around it where tokens of bytes come out together
(:mod:`sglang_lp.text.byte_runs`), also what comes after the budget. So the last token of a budget
leaves no such run broken.
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
    """What the tokens of a model do to characters."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._runs = vocabulary.byte_runs
        missing = [(lacking(tail), ids) for tail, ids in vocabulary.tails.items()]
        self._cutting: list[Ids | list[int]] = []
        for left in range(MOST_LACKING):
            found = sorted(i for lacks, ids in missing if lacks > left for i in ids)
            self._cutting.append(lasting(known_ids(found, vocab_size)))

    def cutting(self, token_ids: Sequence[int], left: int) -> Iterable[int]:
        """Return the tokens after which so many more cannot finish the characters of an output.

        Those that end inside a character; and if none are left, bytes that break a run or leave
        one broken.
        """
        if not left and self._runs.ids:
            return self._runs.breaking(token_ids)
        return self._cutting[left] if left < MOST_LACKING else ()

    def is_inside(self, token_ids: Sequence[int]) -> bool:
        """Tell whether an output ends inside a character, or a run of bytes that is not whole."""
        if self._runs.ids:
            return bool(self._runs.left_open(token_ids))
        return unfinished(self._vocabulary.text(token_ids[-MOST_LACKING:])) > 0


def characters_of(tokenizer: Any, vocab_size: int) -> Characters | None:
    """Return what the tokens of a model do to characters, made once.

    Args:
        tokenizer: The served model's, or ``None``.
        vocab_size: Number of logits in a row.

    Returns:
        ``None`` if no token ends inside of one, or nobody can tell.
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
