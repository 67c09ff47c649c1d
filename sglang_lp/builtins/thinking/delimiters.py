"""Thinking delimiters in a tokenizer: finding their ids, and checking those of a family.

Takes tokenizers of ``transformers``, as SGLang serves them, and of ``tokenizers``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from sglang_lp.builtins.thinking.known import FAMILIES, Family
from sglang_lp.errors import RequestError, shown
from sglang_lp.text.encoding import encode

#: The start and the end of thinking in the models with a reasoning parser in SGLang 0.5.23
#: (parser/reasoning_parser.py; of K2 Horizon at high effort), and in models without: Seed-OSS
#: (vLLM 0.33, reasoning/seedoss_reasoning_parser.py), LongCat and PLaMo 3 (vLLM's reasoning
#: parsers), Solar Open 2 (the example of its model card).
PAIRS = (
    ("<think>", "</think>"),
    ("◁think▷", "◁/think▷"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|content_thinking|>", "<|end_message|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<ifm|think>", "</ifm|think>"),
    (" to=self<|message|>", "<|eom|>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
)

#: Control tokens inside a longer delimiter, such as ``<|channel|>`` and ``<|channel>``; PLaMo's
#: delimiters have two, around a word.
_CONTROL = re.compile(r"<\|\w+\|?>|<\w+\|>|<\|plamo:\w+_|:plamo\|>")


_Pair = tuple[str, tuple[int, ...], str, tuple[int, ...]]


class Delimiters(NamedTuple):
    """A pair of delimiters in one tokenizer.

    Attributes:
        start: Opens a thinking block.
        start_ids: The tokens of ``start``.
        end: Closes a thinking block.
        end_ids: The tokens of ``end``.
        new_line_id: The token that is forced before ``end``, or ``None``.
        family: The known family with these ids, or ``None``.
    """

    start: str
    start_ids: tuple[int, ...]
    end: str
    end_ids: tuple[int, ...]
    new_line_id: int | None
    family: Family | None


def resolve(tokenizer: Any, start: str | None = None, end: str | None = None) -> Delimiters:
    """Find the delimiters of thinking in a tokenizer.

    A string is first looked for as one token, then among the added tokens with a suffix
    (``<think:opensource>``), then encoded. Each result has to decode back to the string.

    Args:
        tokenizer: A tokenizer of ``transformers`` or ``tokenizers``.
        start: Opens a block; ``None`` to find the only pair of ``PAIRS`` whose control
            tokens this tokenizer has.
        end: Closes a block; given exactly if ``start`` is.

    Raises:
        RequestError: The tokenizer has no tokens for them, or several known pairs.
    """
    found = _resolve(tokenizer, start, end)
    if isinstance(found, str):
        raise RequestError(found)
    return found


@lru_cache(maxsize=64)
def find_tool_starts(tokenizer: Any, texts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the tokens that are one of these texts.

    Args:
        tokenizer: A tokenizer of ``transformers`` or ``tokenizers``.
        texts: Texts that open a tool call.
    """
    return tuple(token_id for text in texts for token_id in _find_single(tokenizer, text))


def forget_answers() -> None:
    """Clear the caches of this module: a client may have added tokens since.

    A server never does, and checking whether its tokenizer has grown may take 75 ms
    (tokenizers 0.22).
    """
    _resolve.cache_clear()
    _added_tokens.cache_clear()
    find_tool_starts.cache_clear()


@lru_cache(maxsize=64)
def _resolve(tokenizer: Any, start: str | None, end: str | None) -> Delimiters | str:
    """Return the result of ``resolve``, or the message of its error, so that both are cached."""
    if start is not None and end is not None:
        named = _look_up(tokenizer, start, end)
        if isinstance(named, str):
            return named
        found = [named]
    else:
        found = [pair for texts in PAIRS if (pair := _detect(tokenizer, *texts))]
        if len(found) != 1:
            return (
                f"expected one known pair of thinking delimiters in the tokenizer, found "
                f"{', '.join(f'{s!a} {e!a}' for s, _, e, _ in found) or 'none'}; name them with "
                "thinking_start and thinking_end, or give their token ids"
            )
    start, start_ids, end, end_ids = found[0]
    for family in FAMILIES:
        if (family.start_ids, family.end_ids) == (start_ids, end_ids) and _is(tokenizer, family):
            return Delimiters(start, start_ids, end, end_ids, family.new_line_id, family)
    new_line = encode(tokenizer, "\n") if len(start_ids) == len(end_ids) == 1 else ()
    single = new_line[0] if len(new_line) == 1 else None
    if single in (*start_ids, *end_ids):
        single = None
    return Delimiters(start, start_ids, end, end_ids, single, None)


def check_family(tokenizer: Any, family: Family) -> None:
    """Refuse a tokenizer in which the delimiters of a family have other ids.

    Args:
        tokenizer: The served model's.
        family: The family of the request's processor.

    Raises:
        RequestError: The tokenizer is another model's. The message names the class for that model,
            if a class exists.
    """
    if problem := _find_mismatch(tokenizer, family):
        raise RequestError(problem)


@lru_cache(maxsize=64)
def _find_mismatch(tokenizer: Any, family: Family) -> str:
    if _is(tokenizer, family):
        return ""
    right = next((other for other in FAMILIES if not other.native and _is(tokenizer, other)), None)
    if family.native and right is None:
        return ""
    found = " and ".join(
        f"{text!a} is {_show(_find_single(tokenizer, text))}, not {_show(ids)}"
        for text, ids in ((family.start, family.start_ids), (family.end, family.end_ids))
    )
    advice = f"{right.processor}, or " if right else ""
    return (
        f"the served model is not of this family ({family.models}): in its tokenizer {found}; "
        f"use {advice}ThinkingBudgetLogitProcessor, which asks the tokenizer"
    )


def _is(tokenizer: Any, family: Family) -> bool:
    return _is_called(tokenizer, family.start_ids, family.start) and _is_called(
        tokenizer, family.end_ids, family.end
    )


def _is_called(tokenizer: Any, ids: tuple[int, ...], text: str) -> bool:
    if len(ids) > 1:
        return encode(tokenizer, text) == ids
    token = _find_token(tokenizer, ids[0])
    return token is not None and (token == text or token == _find_suffixed(tokenizer, text))


def _look_up(tokenizer: Any, start: str, end: str) -> _Pair | str:
    ids = []
    for text in (start, end):
        found = _find_single(tokenizer, text) or encode(tokenizer, text)
        if not found:
            return f"the tokenizer has no tokens that spell {shown(text)}"
        ids.append(found)
    return start, ids[0], end, ids[1]


def _detect(tokenizer: Any, start: str, end: str) -> _Pair | None:
    """Return the pair if the tokenizer has its control tokens."""
    ids = []
    for text in (start, end):
        found = _find_single(tokenizer, text)
        controls = _CONTROL.findall(text)
        if not found and controls and all(_find_single(tokenizer, control) for control in controls):
            found = encode(tokenizer, text)
        if not found:
            return None
        ids.append(found)
    return start, ids[0], end, ids[1]


def _find_single(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return the single token of a text, perhaps with a suffix; empty if there is none."""
    for candidate in (text, _find_suffixed(tokenizer, text)):
        if candidate is not None:
            token_id = _find_id(tokenizer, candidate)
            if token_id is not None and _find_token(tokenizer, token_id) == candidate:
                return (token_id,)
    return ()


def _find_suffixed(tokenizer: Any, text: str) -> str | None:
    """Return the only added token that is ``text`` with a suffix, as ``<think:opensource>``."""
    if not re.fullmatch(r"</?\w+>", text):
        return None
    pattern = re.compile(re.escape(text[:-1]) + r":[\w\-]+>")
    names = [name for name in _added_tokens(tokenizer) if pattern.fullmatch(name)]
    return names[0] if len(names) == 1 else None


@lru_cache(maxsize=8)
def _added_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the added tokens, cached because a tokenizer takes milliseconds to list them."""
    if hasattr(tokenizer, "get_added_vocab"):
        return (*tokenizer.get_added_vocab(),)
    decoder: dict[int, Any] = getattr(tokenizer, "get_added_tokens_decoder", dict)()
    return tuple(token.content for token in decoder.values())


def _find_id(tokenizer: Any, token: str) -> int | None:
    """Return the id of a token; ``None`` if there is none or it is the unknown token's."""
    ask = getattr(tokenizer, "convert_tokens_to_ids", None) or getattr(
        tokenizer, "token_to_id", None
    )
    try:
        token_id = ask(token) if ask else None
    except (UnicodeEncodeError, TypeError):  # half a character, as JSON can spell it
        return None
    if not isinstance(token_id, int) or token_id == getattr(tokenizer, "unk_token_id", None):
        return None
    return token_id


def _find_token(tokenizer: Any, token_id: int) -> str | None:
    """Return the name of a token in a tokenizer; ``None`` if it has no such id."""
    ask = getattr(tokenizer, "convert_ids_to_tokens", None) or getattr(
        tokenizer, "id_to_token", None
    )
    try:
        token = ask(token_id) if ask else tokenizer.decode([token_id])
    except (KeyError, IndexError, ValueError, OverflowError):
        return None
    return token if isinstance(token, str) else None


def _show(ids: tuple[int, ...]) -> str:
    if not ids:
        return "no token"
    return str(ids[0]) if len(ids) == 1 else str([*ids])
