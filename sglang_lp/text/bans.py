"""The common part of bans of texts and of whole words: their texts, and the texts of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sglang_lp.caches import shared_by_copies
from sglang_lp.errors import RequestError, shown
from sglang_lp.text.utf8 import folded

if TYPE_CHECKING:
    from sglang_lp.text.pieces import Pieces
    from sglang_lp.text.vocabulary import Vocabulary

_Ban = TypeVar("_Ban")


def for_each_text(  # noqa: PLR0913 - the arguments of a ban, and two more
    kind: Callable[..., _Ban],
    vocabulary: Vocabulary,
    texts: tuple[str, ...],
    *,
    ignore_case: bool,
    spared: tuple[int, ...],
    meets_names: bool,
) -> tuple[_Ban, ...]:
    """Return the compiled ban for each text that a client may get: the same objects for copies.

    A client gets the answer without special tokens (``skip_special_tokens``, SGLang's default), or
    with their names.

    Args:
        kind: The class of the ban.
        vocabulary: The served model's.
        texts: At least one, each a character or more.
        ignore_case: Whether texts are equal if ``str.casefold`` makes them equal.
        spared: Special tokens whose names no client gets.
        meets_names: Whether the ban depends on the names of special tokens.

    Raises:
        RequestError: As the class.
    """
    plain = _compiled(kind, vocabulary, texts, ignore_case=ignore_case, spared=())
    if not meets_names:
        return (plain,)
    named = _compiled(kind, vocabulary.named, texts, ignore_case=ignore_case, spared=spared)
    return plain, named


@shared_by_copies
def _compiled(
    kind: Callable[..., Any],
    vocabulary: Vocabulary,
    texts: tuple[str, ...],
    *,
    ignore_case: bool,
    spared: tuple[int, ...],
) -> Any:
    return kind(vocabulary, texts, ignore_case=ignore_case, spared=spared)


def sorted_texts(pieces: Pieces, texts: tuple[str, ...], *, ignore_case: bool) -> list[bytes]:
    """Return texts as the bytes that tokens are compared with, each once and in order.

    Args:
        pieces: The tokens, folded with ``ignore_case``.
        texts: The texts.
        ignore_case: Whether to fold the texts. They may then have bytes that no token has.

    Raises:
        RequestError: No tokens spell a text.
    """
    encoded = [text.encode() for text in texts]
    if ignore_case:
        return sorted({*map(folded, encoded)})
    for text in sorted({*encoded}):
        if not pieces.alphabet.issuperset(text):
            raise RequestError(
                f"expected texts that the served model can write, got {shown(text.decode())}, "
                "which no tokens spell"
            )
    return sorted({*encoded})
