"""What a client can find out about the served model: its tokenizer, and its configuration."""

from __future__ import annotations

from os import PathLike
from typing import Any

import orjson

from sglang_lp.client.delimiters import load_tokenizer
from sglang_lp.errors import RequestError, shown
from sglang_lp.served_model import ServedModel

__all__ = ["load_model"]


def load_model(tokenizer: Any) -> ServedModel:
    """Return what is known of a model.

    Args:
        tokenizer: Its directory, in which ``config.json`` and ``generation_config.json`` tell the
            tokens that end an answer; or a tokenizer of ``tokenizers`` or ``transformers``; or
            ``None``.

    Raises:
        RequestError: It is none of these, or cannot be read.
    """
    if tokenizer is None:
        return ServedModel()
    loaded = load_tokenizer(tokenizer)
    if not isinstance(tokenizer, str | PathLike):
        return ServedModel.of(loaded)
    config = _read(tokenizer, "config.json")
    config = {**config, **config.get("text_config", {})}
    ends: set[int] = set()
    for found in (config, _read(tokenizer, "generation_config.json")):
        end = found.get("eos_token_id")
        ends.update([end] if isinstance(end, int) else end or ())
    return ServedModel.of(loaded, config.get("vocab_size"), ends)


def _read(directory: str | PathLike[str], name: str) -> dict[str, Any]:
    from pathlib import Path

    path = Path(directory, name)
    if not path.is_file():
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise RequestError(f"{shown(str(path))} is no JSON: {error}") from None
    return found if isinstance(found, dict) else {}
