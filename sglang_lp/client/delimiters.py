"""A model's thinking delimiters, found in its tokenizer."""

from __future__ import annotations

from os import PathLike
from typing import Any

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.delimiters import Delimiters, forget_answers
from sglang_lp.builtins.thinking.delimiters import resolve as resolve_delimiters
from sglang_lp.errors import RequestError, shown
from sglang_lp.text.encoding import encode

__all__ = ["find_delimiters", "load_tokenizer", "resolve"]


def resolve(
    tokenizer: Any,
    *,
    thinking_start: str | None = None,
    thinking_end: str | None = None,
    closing: str | None = None,
) -> dict[str, Any]:
    """Return the ids in ``custom_params`` of ``ThinkingBudgetLogitProcessor`` for a model.

    Args:
        tokenizer: The directory of a model with a ``tokenizer.json`` in it, which needs the
            ``tokenizers`` library; or a tokenizer of ``tokenizers`` or ``transformers``.
        thinking_start: What opens a thinking block. By default the only known pair that the
            tokenizer has is taken.
        thinking_end: What closes it.
        closing: A message to close a block with, made ``closing_token_ids``.

    Raises:
        RequestError: There is no such tokenizer, it has no tokens for a delimiter, a text does not
            decode back from its tokens, or the processor does not take the ids.
    """
    tokenizer = load_tokenizer(tokenizer)
    found = find_delimiters(tokenizer, thinking_start, thinking_end)
    params: dict[str, Any] = {}
    for side, ids in (("start", found.start_ids), ("end", found.end_ids)):
        if len(ids) == 1:
            params[f"thinking_{side}_token_id"] = ids[0]
        else:
            params[f"thinking_{side}_token_ids"] = [*ids]
    if found.new_line_id is not None:
        params["new_line_token_id"] = found.new_line_id
    if closing is not None:
        _check_text("closing", closing)
        ids = encode(tokenizer, closing)
        if not ids:
            raise RequestError(
                f"the tokens of the closing message {shown(closing)} do not lead back to "
                "it in this tokenizer; give closing_token_ids instead"
            )
        params["closing_token_ids"] = [*ids]
    # Each side may be fine by itself and not with the other; any budget will do.
    ThinkingBudgetLogitProcessor.parse_params({**params, "thinking_budget": 0})
    return params


def find_delimiters(
    tokenizer: Any, thinking_start: str | None = None, thinking_end: str | None = None
) -> Delimiters:
    """Return the delimiters with their texts and family.

    Args:
        tokenizer: What :func:`load_tokenizer` returned.
        thinking_start: As in :func:`resolve`.
        thinking_end: As in :func:`resolve`.

    Raises:
        RequestError: The tokenizer has no tokens for a delimiter.
    """
    texts = {"thinking_start": thinking_start, "thinking_end": thinking_end}
    given = {name: text for name, text in texts.items() if text is not None}
    if len(given) == 1:
        raise RequestError(
            f"expected thinking_start and thinking_end, or neither, got only {next(iter(given))}"
        )
    for name, text in given.items():
        _check_text(name, text)
    forget_answers()
    return resolve_delimiters(tokenizer, thinking_start, thinking_end)


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str) or not text:
        raise RequestError(
            f"{name}: expected a text of one character or more, got {shown(text)}; leave it out "
            "for none"
        )


def load_tokenizer(tokenizer: Any) -> Any:
    """Return the tokenizer of a model's directory, or the one that was given.

    Raises:
        RequestError: It is neither, or cannot be read.
    """
    if not isinstance(tokenizer, str | PathLike):
        methods = (getattr(tokenizer, name, None) for name in ("encode", "decode"))
        if isinstance(tokenizer, type) or not all(map(callable, methods)):
            raise RequestError(
                "expected a model's directory, or a tokenizer of tokenizers or transformers, got "
                f"{shown(tokenizer)}"
            )
        return tokenizer
    from pathlib import Path  # not above: it would make importing the client slower

    path = Path(tokenizer, "tokenizer.json")
    if not path.is_file():
        raise RequestError(
            f"expected a directory with a tokenizer.json, got {shown(str(tokenizer))}; load any "
            "other tokenizer with transformers and give it to sglang_lp.client.resolve"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise RequestError(
            "reading a tokenizer.json needs the tokenizers library: pip install tokenizers"
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise RequestError(
            f"{shown(str(path))} is no tokenizer that this version of tokenizers reads: "
            f"{shown(str(error), 200)}"
        ) from error
