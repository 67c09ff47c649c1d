"""The demo's tokenizer, read without the toolkit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from demo.model import ensure_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["decode", "encode"]


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
