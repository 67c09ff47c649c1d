"""The served model as a client can read it: its tokenizer and its configuration."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec
import orjson

from sglang_lp.errors import RequestError, shown
from sglang_lp.faults import from_signal
from sglang_lp.served_model import ServedModel
from sglang_lp.wire.names import TOKENIZER_PATH

__all__ = ["load_model", "read_model"]


def load_model(tokenizer: Any) -> ServedModel:
    """Read a model.

    Args:
        tokenizer: The model's directory, whose ``config.json`` and ``generation_config.json`` have
            the end tokens; or a tokenizer of ``tokenizers`` or ``transformers``; or ``None``.

    Returns:
        The model, as far as it is known.

    Raises:
        RequestError: ``tokenizer`` has another type, or cannot be read.
    """
    if tokenizer is None:
        return ServedModel()
    loaded = _load_tokenizer(tokenizer)
    if not isinstance(tokenizer, str | PathLike):
        return ServedModel.of(loaded)
    config = _read(tokenizer, "config.json")
    config = {**config, **config.get("text_config", {})}
    ends: set[int] = set()
    for found in (config, _read(tokenizer, "generation_config.json")):
        end = found.get("eos_token_id")
        ends.update([end] if isinstance(end, int) else end or ())
    return ServedModel.of(loaded, config.get("vocab_size"), ends)


#: Most ids of a model that a server describes: several times the largest vocabulary. A replay
#: makes a row of logits, and the vocabulary a list.
_MOST_IDS = 1 << 22


class _Told(msgspec.Struct):
    """A model, as a server describes it."""

    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=_MOST_IDS)] | None
    eos_token_ids: list[int]
    tokenizer: dict[str, Any]


def read_model(answer: Any) -> ServedModel:
    """Read the model that a server describes.

    Args:
        answer: The JSON of ``GET /sglang_lp/tokenizer``.

    Raises:
        RequestError: It is not such JSON, or its tokenizer cannot be read or has ids above
            ``_MOST_IDS``.
    """
    try:
        told = msgspec.convert(answer, _Told)
    except msgspec.ValidationError as error:
        raise RequestError(f"{TOKENIZER_PATH}: expected a tokenizer: {error}") from None
    loaded = _parsed(
        "the server's tokenizer",
        lambda library: library.from_str(orjson.dumps(told.tokenizer).decode()),
    )
    most = max(loaded.get_vocab().values(), default=0)
    if most >= _MOST_IDS:
        raise RequestError(
            f"{TOKENIZER_PATH}: expected a tokenizer of at most {_MOST_IDS} ids, got id {most}"
        )
    return ServedModel.of(loaded, told.vocab_size, told.eos_token_ids)


def _read(directory: str | PathLike[str], name: str) -> dict[str, Any]:
    path = Path(directory, name)
    if not path.is_file():
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise RequestError(f"tokenizer: expected JSON in {shown(str(path))}: {error}") from None
    return found if isinstance(found, dict) else {}


def _load_tokenizer(tokenizer: Any) -> Any:
    """Return the tokenizer of a model's directory, or the one that was given.

    Raises:
        RequestError: ``tokenizer`` is neither, or cannot be read.
    """
    if not isinstance(tokenizer, str | PathLike):
        methods = (getattr(tokenizer, name, None) for name in ("encode", "decode"))
        if isinstance(tokenizer, type) or not all(map(callable, methods)):
            raise RequestError(
                "tokenizer: expected a model's directory, or a tokenizer of tokenizers or "
                f"transformers, got {shown(tokenizer)}"
            )
        return tokenizer
    path = Path(tokenizer, "tokenizer.json")
    if not path.is_file():
        raise RequestError(
            f"tokenizer: expected a directory with a tokenizer.json, got {shown(str(tokenizer))}; "
            "load any other tokenizer with transformers and give that"
        )
    return _parsed(shown(str(path)), lambda library: library.from_file(str(path)))


def _parsed(name: str, parse: Callable[[Any], Any]) -> Any:
    """Return a tokenizer that the class ``tokenizers.Tokenizer`` reads.

    Args:
        name: Name of the tokenizer, for messages.
        parse: Reads the tokenizer, given the class.

    Raises:
        RequestError: It cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise RequestError(
            "tokenizer: reading a tokenizer.json takes its library: pip install tokenizers"
        ) from None
    try:
        return parse(Tokenizer)
    except BaseException as error:  # a panic of the library is no Exception
        if from_signal(error):
            raise
        raise RequestError(
            f"tokenizer: {name} cannot be read by this version of tokenizers: "
            f"{shown(str(error), 200)}"
        ) from error
