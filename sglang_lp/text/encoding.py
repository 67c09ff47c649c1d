"""The texts of a request: checked, and written in tokens of the served model."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import InvalidParameter, refusing, shown
from sglang_lp.text.vocabulary import Vocabulary, vocabulary_of

if TYPE_CHECKING:
    import numpy as np

#: Most bytes that the texts of one request may have together: they are compiled as it arrives.
MAX_BYTES = 32_768


def check_texts(name: str, texts: Sequence[str], limit: int = MAX_BYTES) -> None:
    """Refuse texts that no model can write, or too many.

    Args:
        name: The parameter's name, for the message.
        texts: The texts.
        limit: Most bytes that they may have together.

    Raises:
        ValueError: They contain half a character or U+FFFD, or are too long together.
    """
    try:
        length = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name}: expected text, got half a character (a lone surrogate) in "
            f"{shown(error.object)}"
        ) from None
    if any("\ufffd" in text for text in texts):
        raise ValueError(
            f"{name}: expected characters, got U+FFFD, which replaces bytes that are no character"
        )
    if length > limit:
        raise ValueError(
            f"{name}: expected at most {limit} bytes of UTF-8 in all texts together, got {length}"
        )


def known_ids(token_ids: Sequence[int], vocab_size: int) -> Sequence[int]:
    """Return the ids that have a logit, of ascending ids: a tokenizer may have more."""
    if not token_ids or token_ids[-1] < vocab_size:
        return token_ids
    return token_ids[: bisect_left(token_ids, vocab_size)]


def without(found: np.ndarray, spared: Sequence[int]) -> array[int]:
    """Return ids, shape ``(count,)``, int64, without some others, in their order."""
    import numpy as np

    kept = found[np.isin(found, spared, invert=True)] if spared else found
    return array("q", kept.tobytes())


def served_vocabulary(processor: str, name: str, tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of the served model.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        tokenizer: The served model's, or ``None``.

    Raises:
        InvalidParameter: There is no tokenizer, or the bytes of its tokens are unknown.
    """
    require_tokenizer(processor, name, tokenizer)
    with refusing(processor, name):
        return vocabulary_of(tokenizer)


def require_tokenizer(processor: str, name: str, tokenizer: Any) -> None:
    """Refuse a parameter that needs a tokenizer, on a server without one.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        tokenizer: The served model's, or ``None``.

    Raises:
        InvalidParameter: There is no tokenizer.
    """
    if tokenizer is None:
        raise InvalidParameter(
            processor,
            name,
            "the server has no tokenizer (--skip-tokenizer-init), so it cannot tell which tokens "
            "spell a text; give token ids",
        )


def forced_text(
    processor: str, name: str, tokenizer: Any, text: str, vocab_size: int | None
) -> tuple[int, ...]:
    """Return the tokens to force for a text.

    The tokenizer's own tokens for the text are used, because the model has seen them. Exceptions:

    - If the tokenizer puts a space before the text (SentencePiece), the first word is written in
      the longest tokens that spell it without the space.
    - If the tokenizer changes the text in other ways, all of it is written in such tokens.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        tokenizer: The served model's, or ``None``.
        text: A character or more.
        vocab_size: Number of logits in a row, if known: a tokenizer may have more tokens.

    Raises:
        InvalidParameter: No tokens spell it, or one of them has no logit, or the bytes of the
            tokens are unknown; or it contains the name of a special token.
    """
    vocabulary = served_vocabulary(processor, name, tokenizer)
    refuse_names(processor, name, vocabulary, [text])
    ids = _forced_text(vocabulary, tokenizer, text)
    if not ids or (vocab_size is not None and max(ids) >= vocab_size):
        raise InvalidParameter(
            processor, name, f"expected text that the served model can write, got {shown(text)}"
        )
    return ids


def refuse_names(processor: str, name: str, vocabulary: Vocabulary, texts: Sequence[str]) -> None:
    """Refuse texts that contain the name of a special token, which is ambiguous to write.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        vocabulary: The served model's.
        texts: The texts.

    Raises:
        InvalidParameter: A text contains such a name.
    """
    for text in texts:
        if held := vocabulary.name_in(text):
            raise InvalidParameter(
                processor,
                name,
                f"expected text without special tokens, got {shown(text)}, which contains the "
                f"token {shown(held)}; give token ids",
            )


@lru_cache(maxsize=256)
def _forced_text(vocabulary: Vocabulary, tokenizer: Any, text: str) -> tuple[int, ...]:
    ids = encode(tokenizer, text)
    wanted, written = text.encode(), vocabulary.text(ids)
    if written == wanted:
        return ids
    if written.endswith(wanted):
        pieces = [vocabulary.text([token_id]) for token_id in ids]
        head, count = len(wanted) - len(written), 0
        while count < len(ids) and (head <= 0 or not pieces[count].startswith(b" ")):
            head += len(pieces[count])
            count += 1
        if first := vocabulary.spell(wanted[:head]):
            return (*first, *ids[count:])
    return tuple(vocabulary.spell(wanted))


def with_texts(message: str, tokenizer: Any) -> str:
    """Return a message with the text of each token id in it: ``token 264 (' the') is banned``.

    Args:
        message: Its only numbers are ids of the tokenizer.
        tokenizer: Of ``transformers`` or ``tokenizers``; ``None`` leaves the message as it is.
    """

    def named(found: re.Match[str]) -> str:
        try:
            text = tokenizer.decode([int(found[0])], skip_special_tokens=False)
        except (KeyError, IndexError, ValueError, TypeError, OverflowError):
            return found[0]  # this tokenizer has no such token
        part = not text.strip("\ufffd")  # of a character
        return found[0] if part else f"{found[0]} ({shown(text)})"

    return message if tokenizer is None else re.sub(r"\d+", named, message)


def encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return the tokens of a text; empty if they do not decode back to it."""
    # Some models' settings have transformers drop spaces around punctuation.
    as_is = {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "init_kwargs") else {}
    try:
        ids = tokenizer.encode(text, add_special_tokens=False)
        ids = tuple(getattr(ids, "ids", ids))
        back = tokenizer.decode([*ids], skip_special_tokens=False, **as_is)
    except (KeyError, IndexError, ValueError, TypeError, OverflowError):
        return ()  # this tokenizer cannot encode or decode it
    return ids if back == text else ()
