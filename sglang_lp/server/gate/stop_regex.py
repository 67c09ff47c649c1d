"""A bound on the work of ``stop_regex``, which SGLang searches in its scheduler at each step.

Python's matcher tries one way to match after another. The number of ways follows from the pattern,
whatever the text, if every repeat has an upper limit. SGLang searches as many of the last tokens
as the longest match has characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from re import _parser as parser  # type: ignore[attr-defined]  # as SGLang measures patterns
from typing import Any, NamedTuple

from sglang_lp.errors import RequestError, shown

#: Most steps of the matcher for the patterns of one request, at one token of its output: about
#: 0.5 ms.
MAX_STEPS = 16_384

#: Most characters in the sets of the patterns of one request: Python goes through each of them
#: when it compiles a pattern, in SGLang's scheduler.
MAX_WIDTH = 131_072

#: SGLang gives every other part, such as ``[^a]``, no length, and then searches the whole output.
_CHARACTERS = frozenset((parser.LITERAL, parser.IN, parser.ANY))
_OF_SET = frozenset((parser.LITERAL, parser.RANGE))
#: The last character that a set goes through, and its work besides, in characters.
_LAST, _EACH_SET = 0xFFFF, 2_048
_REPEATS = frozenset((parser.MAX_REPEAT, parser.MIN_REPEAT))
_ADVICE = (
    r"give each repeat a small upper limit, such as \d{1,8}, and leave out look-arounds, "
    "references and sets that exclude one character"
)


class _Work(NamedTuple):
    """The work of a part of a pattern at one place of a text.

    Attributes:
        length: Most characters of a match.
        ways: Most ways to match.
        steps: Most steps over all ways.
        width: Characters of sets, which Python goes through when it compiles the pattern.
    """

    length: int = 0
    ways: int = 1
    steps: int = 0
    width: int = 0


class _UnboundedError(Exception):
    """A part of a pattern has no bound."""


def check_stop_regex(patterns: str | Sequence[str], window: int) -> int:
    """Refuse patterns that could hold up a scheduler.

    Args:
        patterns: The patterns of one request.
        window: Most characters of its stop strings: SGLang searches as many tokens.

    Returns:
        Most steps of the matcher at one token.

    Raises:
        RequestError: A pattern is invalid, or the work of all exceeds :data:`MAX_STEPS` or
            :data:`MAX_WIDTH`.
    """
    each = [patterns] if isinstance(patterns, str) else [*patterns]
    works = [_work_of(one) for one in each]
    tail = 1 + max(window, *(work.length for work in works))
    steps = tail * sum(work.steps for work in works)
    if steps > MAX_STEPS:
        raise RequestError(
            f"stop_regex: expected patterns that take at most {MAX_STEPS} steps at each token, "
            f"got {steps if steps < 10**9 else 'over a billion'}; {_ADVICE}"
        )
    width = sum(work.width for work in works)
    if width > MAX_WIDTH:
        raise RequestError(
            f"stop_regex: expected patterns with at most {MAX_WIDTH} characters in their sets, got "
            f"{width}; name ranges such as [a-z], and leave out those of whole alphabets"
        )
    return steps


@lru_cache(maxsize=256)
def _work_of(pattern: str) -> _Work:
    try:
        return _sequence(parser.parse(pattern))
    except _UnboundedError:
        raise RequestError(
            f"stop_regex: expected a pattern of bounded work, got {shown(pattern)}; {_ADVICE}"
        ) from None
    except (re.error, OverflowError, RecursionError) as error:
        raise RequestError(
            f"stop_regex: expected a regular expression of Python, got {shown(pattern)}: "
            f"{shown(str(error), 100)}; correct it"
        ) from None


def _sequence(parts: Any) -> _Work:
    """Return the work of parts that follow each other: each way of one continues with the next."""
    length, ways, steps, width = 0, 1, 0, 0
    for token, value in reversed([*parts]):
        one = _part(token, value)
        length, ways, steps = length + one.length, ways * one.ways, one.steps + one.ways * steps
        width += one.width
        if max(length, ways, steps) > MAX_STEPS:
            raise _UnboundedError
    return _Work(length, ways, steps, width)


def _part(token: Any, value: Any) -> _Work:
    if token in _CHARACTERS:
        return _Work(1, 1, 1, _width(value) if token == parser.IN else 0)
    if token == parser.AT:  # such as ^ and \b
        return _Work(0, 1, 1)
    if token == parser.SUBPATTERN:
        return _sequence(value[-1])
    if token == parser.BRANCH:
        works = [_sequence(branch) for branch in value[1]]
        return _Work(
            max(work.length for work in works),
            sum(work.ways for work in works),
            sum(work.steps for work in works) + len(works),
            sum(work.width for work in works),
        )
    if token in _REPEATS:
        return _repeat(*value)
    raise _UnboundedError


def _repeat(least: int, most: int, parts: Any) -> _Work:
    if most > MAX_STEPS:
        raise _UnboundedError
    one = _sequence(parts)
    ways = steps = 0
    tried = 1  # ways to match the repeats so far
    for count in range(int(most) + 1):
        ways += tried if count >= least else 0
        steps += tried * (one.steps + 1)
        tried *= one.ways
        if max(ways, steps) > MAX_STEPS:
            raise _UnboundedError
    return _Work(one.length * most, ways, steps, one.width)


def _width(parts: Any) -> int:
    """Return the work of compiling a set, in characters."""
    found = [value for token, value in parts if token in _OF_SET]
    ranges = [one if isinstance(one, tuple) else (one, one) for one in found]
    through = (max(0, min(most, _LAST) - least + 1) for least, most in ranges)
    return _EACH_SET + sum(through) if ranges else 0
