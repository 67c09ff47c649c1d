"""A model's thinking delimiters, from its tokenizer."""

from __future__ import annotations

from os import PathLike
from typing import Any

from sglang_lp.builtins._delimiters import Delimiters, encode
from sglang_lp.builtins._delimiters import resolve as resolve_delimiters
from sglang_lp.errors import RequestError, shown

__all__ = ["delimiters_of", "resolve"]


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
        RequestError: There is no such tokenizer, it does not tell the ids, or a text does not
            come back from its tokens.
    """
    tokenizer = _loaded(tokenizer)
    found = delimiters_of(tokenizer, thinking_start, thinking_end)
    params: dict[str, Any] = {}
    for side, ids in (("start", found.start_ids), ("end", found.end_ids)):
        if len(ids) == 1:
            params[f"thinking_{side}_token_id"] = ids[0]
        else:
            params[f"thinking_{side}_token_ids"] = [*ids]
    if found.new_line_id is not None:
        params["new_line_token_id"] = found.new_line_id
    if closing:
        ids = encode(tokenizer, closing)
        if not ids:
            raise RequestError(
                f"resolve: the tokens of the closing message {shown(closing)} do not lead back to "
                "it in this tokenizer; give closing_token_ids instead"
            )
        params["closing_token_ids"] = [*ids]
    return params


def delimiters_of(
    tokenizer: Any, thinking_start: str | None = None, thinking_end: str | None = None
) -> Delimiters:
    """Return the delimiters with their texts and family; arguments and errors as ``resolve``."""
    if (thinking_start is None) != (thinking_end is None):
        raise RequestError("resolve: give thinking_start and thinking_end, or neither")
    return resolve_delimiters(_loaded(tokenizer), thinking_start, thinking_end)


def _loaded(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, str | PathLike):
        return tokenizer
    from pathlib import Path  # not above: it would make importing the client slower

    path = Path(tokenizer, "tokenizer.json")
    if not path.is_file():
        raise RequestError(
            f"resolve: expected a directory with a tokenizer.json, got {shown(str(tokenizer))}; "
            "load any other tokenizer with transformers and pass it itself"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise RequestError(
            "resolve: reading a tokenizer.json needs the tokenizers library: pip install "
            "tokenizers, or pass a tokenizer of transformers"
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise RequestError(
            f"resolve: {shown(str(path))} is no tokenizer that this version of tokenizers reads: "
            f"{shown(str(error), 200)}"
        ) from error
