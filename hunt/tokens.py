"""The demo's tokenizer, read without the toolkit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from demo.model import ensure_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["decode", "encode", "fewest", "is_alone", "text_of"]


@cache
def _tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(ensure_model() / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """Return the ids of a text."""
    ids: list[int] = _tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def decode(token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
    """Return the text of ids."""
    text: str = _tokenizer().decode([*token_ids], skip_special_tokens=skip_special_tokens)
    return text


def fewest(text: str) -> int:
    """Return the least number of tokens that spell a text.

    A model may spell a text in fewer tokens than its tokenizer does, under a grammar for example. A
    character without a token counts as one.
    """
    tokens, longest = _texts()
    least = [0]
    for end in range(1, len(text) + 1):
        begins = range(max(0, end - longest), end)
        least.append(1 + min(least[at] for at in begins if at == end - 1 or text[at:end] in tokens))
    return least[-1]


def text_of(token: int) -> str:
    """Return the text of a token."""
    return decode([token])


def is_alone(text: str) -> bool:
    """Tell whether a text is within the text of no token but its own."""
    return sum(text in one for one in _texts()[0]) == 1 and "\ufffd" not in text


@cache
def _texts() -> tuple[frozenset[str], int]:
    """Return the texts of all tokens, and the length of the longest."""
    tokens = frozenset(decode([token]) for token in range(_tokenizer().get_vocab_size()))
    return tokens, max(map(len, tokens))
