"""Values of other engines' fields, read as those engines read them; and of fields for tool calls.

Each function takes the body of a request and the name of a field. It returns a value for
``sglang_lp.policy.fields``, or ``MISSING`` where there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_lp.errors import RequestError, did_you_mean, shown
from sglang_lp.params import MAX_INT
from sglang_lp.policy.fields import NO_CALLS, NO_CALLS_IN_THOUGHTS
from sglang_lp.text.automaton import MAX_SEQUENCE_IDS

MISSING: Any = object()

#: Each word is encoded twice.
_MOST_WORDS, _LONGEST_WORD = 1_024, 256
#: Tokens and lengths of words that the built-in can take at most.
_MOST_SPELLED = MAX_SEQUENCE_IDS + 2 * _MOST_WORDS
_SIZES = ("max_pattern_size", "min_pattern_size", "min_count")


def to_bad_words(body: Any, name: str) -> Any:
    """Return the words of vLLM's ``bad_words``: texts, none of them blank."""
    words = _value(body, name)
    if words is MISSING:
        return MISSING
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise _wrong(name, 'a list of texts, such as ["word"]', words)
    for word in words:
        if not word.strip():
            raise RequestError(
                f"{name}: expected words, got {shown(word)}, which bans nothing; leave it out"
            )
        if len(word) > _LONGEST_WORD:
            raise RequestError(
                f"{name}: expected words of at most {_LONGEST_WORD} characters, got one of "
                f"{len(word)}; make it shorter"
            )
    if len(words) > _MOST_WORDS:
        raise RequestError(
            f"{name}: expected at most {_MOST_WORDS} words, got {len(words)}; for more, name "
            "BadWordsLogitProcessor in custom_logit_processor"
        )
    return words or MISSING


def spell(words: list[str], tokenizer: Any) -> list[int]:
    """Return the sequences of tokens that vLLM bans for words, each after its length.

    These are the tokens of a word, and those of the word after a space if they are as many and
    begin with another token (vLLM 0.33, ``SamplingParams.update_from_tokenizer``).

    Raises:
        RequestError: There is no tokenizer, it has no tokens for a word, or the words have more
            tokens than the built-in takes.
    """
    if tokenizer is None:
        raise RequestError(
            "bad_words: expected none, as this server has no tokenizer (--skip-tokenizer-init); "
            "name BadWordsLogitProcessor in custom_logit_processor, with token_ids"
        )
    flat: list[int] = []
    for word in dict.fromkeys(words):
        plain, spaced = (_encode(tokenizer, space + word.lstrip()) for space in ("", " "))
        if not plain:
            raise RequestError(
                f"bad_words: expected words that this model has tokens for, got {shown(word)}; "
                "leave it out"
            )
        flat += [len(plain), *plain]
        if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
            flat += [len(spaced), *spaced]
        if len(flat) > _MOST_SPELLED:  # a later check would refuse them, once all are encoded
            raise RequestError(
                f"bad_words: expected words of at most {MAX_SEQUENCE_IDS} tokens in all, got more; "
                "leave some out"
            )
    return flat


def to_token_ids(body: Any, name: str) -> Any:
    """Return the tokens of vLLM's ``allowed_token_ids``; an empty list is an error there."""
    token_ids = _value(body, name)
    if token_ids is MISSING:
        return MISSING
    if not isinstance(token_ids, list) or not all(type(one) is int for one in token_ids):
        raise _wrong(name, "a list of token ids, such as [15, 16]", token_ids)
    if not token_ids:
        raise RequestError(f"{name}: expected a token id or more, got none; leave it out")
    return token_ids


def to_count(body: Any, name: str) -> Any:
    """Return a number of tokens; 0 is none."""
    count = _value(body, name)
    if count is MISSING:
        return MISSING
    if type(count) is not int or not 0 <= count <= MAX_INT:
        raise _wrong(name, "a whole number of tokens, 0 or more, such as 8", count)
    return count or MISSING


def to_sigmas(body: Any, name: str) -> Any:
    """Return llama.cpp's ``top_n_sigma``, which 0 and negative numbers turn off."""
    sigmas = _value(body, name)
    if sigmas is MISSING:
        return MISSING
    if type(sigmas) not in {int, float} or not -MAX_INT <= sigmas <= MAX_INT:
        raise _wrong(name, "a number of standard deviations, such as 1.5", sigmas)
    return sigmas if sigmas > 0 else MISSING


def to_repetition(body: Any, name: str) -> Any:
    """Return the sizes of vLLM's ``repetition_detection``, which a largest size of 0 turns off."""
    given = _value(body, name)
    if given is MISSING:
        return MISSING
    example = 'such as {"max_pattern_size": 20, "min_count": 4}'
    if not isinstance(given, Mapping):
        raise _wrong(name, f"an object, {example}", given)
    for key, value in given.items():
        if key not in _SIZES:
            raise RequestError(
                f"{name}: expected {', '.join(_SIZES)}, got {shown(key)}"
                f"{did_you_mean(key, _SIZES) or '; leave it out'}"
            )
        if type(value) is not int or not 0 <= value <= MAX_INT:
            raise _wrong(f"{name}.{key}", "a whole number, 0 or more", value)
    most, least, count = (given.get(key, 0) for key in _SIZES)
    if least > most:
        raise RequestError(
            f"{name}: expected min_pattern_size of at most max_pattern_size, got {least} and "
            f"{most}; give both, {example}"
        )
    if not most:
        return MISSING
    if count < 2:  # noqa: PLR2004 - what comes once is no repetition
        raise RequestError(f"{name}.min_count: expected 2 or more, got {count}; {example}")
    return {"max_pattern_size": most, "min_pattern_size": max(1, least), "min_count": count}


def to_no_calls(body: Any, name: str) -> Any:
    """Return a number for a ``tool_choice`` of ``"none"``, of OpenAI's or Anthropic's form.

    A chat without tools asks for nothing: SGLang itself writes ``"none"`` into its body.

    Returns:
        ``NO_CALLS``; or ``NO_CALLS_IN_THOUGHTS`` for an answer with a format of its own, which is
        no call and may hold any text.
    """
    if not _has_tools(body) or not _is_none(_value(body, name)):
        return MISSING
    return NO_CALLS_IN_THOUGHTS if _has_format(body) else NO_CALLS


def to_one_call(body: Any, name: str) -> Any:
    """Return 1 for ``parallel_tool_calls`` of false, or Anthropic's ``disable_parallel_tool_use``.

    With a ``tool_choice`` of ``"none"``, SGLang reads no text as a call.
    """
    choice = _value(body, "tool_choice")
    is_one = _value(body, name) is False or _inner(choice, "disable_parallel_tool_use") is True
    return 1 if is_one and _has_tools(body) and not _is_none(choice) else MISSING


def _has_tools(body: Any) -> bool:
    """Tell whether the model may call: SGLang takes tools of messages too."""
    messages = _value(body, "messages")
    places = [body, *(messages if isinstance(messages, list) else ())]
    return any(_inner(place, "tools") for place in places)


def _has_format(body: Any) -> bool:
    """Tell whether a chat or a response asks for JSON, or for a text of a grammar."""
    formats = _value(body, "response_format"), _inner(_value(body, "text"), "format")
    return any(_value(body, name) is not MISSING for name in ("regex", "ebnf")) or any(
        _inner(one, "type") not in (None, "text") for one in formats
    )


def _is_none(choice: Any) -> bool:
    return bool((_inner(choice, "type") or choice) == "none")


def _inner(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _encode(tokenizer: Any, text: str) -> Sequence[int]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    found: Sequence[int] = getattr(ids, "ids", ids)  # of the tokenizers library
    return found


def _value(body: Any, name: str) -> Any:
    value = body.get(name) if isinstance(body, Mapping) else None
    return MISSING if value is None else value


def _wrong(name: str, expected: str, value: object) -> RequestError:
    return RequestError(f"{name}: expected {expected}, got {shown(value)}; leave it out for none")
