"""Judges of an answer's text; they share no code with the processors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt

__all__ = ["Share", "distinct", "ends_in_a_loop", "holds_word", "share", "shared_start"]

#: A loop is a text of at most so many characters, ...
LONGEST = 240
#: ... so many times in a row, and together at least so many characters.
TIMES, SHORTEST = 3, 30
#: The standard normal quantile of 95 %.
_Z = 1.959963984540054


#: Hits, of how many, and Wilson's 95 % interval of the fraction.
Share = tuple[int, int, float, float]


def share(seen: Sequence[bool]) -> Share:
    """Return how many are true, with the interval; without any, that is everything."""
    hits, of = sum(seen), len(seen)
    if not of:
        return 0, 0, 0.0, 1.0
    rate, spread = hits / of, _Z * _Z / of
    middle = (rate + spread / 2) / (1 + spread)
    half = _Z * sqrt(rate * (1 - rate) / of + spread / (4 * of)) / (1 + spread)
    return hits, of, round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def ends_in_a_loop(text: str, *, numbered: bool = False) -> bool:
    """Tell whether a text ends with the same words three times or more; the last may be cut off.

    Args:
        text: The answer.
        numbered: Whether it is a loop, too, where only the numbers change.
    """
    plain = re.sub(r"\s+", " ", text.lower())
    if numbered:
        plain = re.sub(r"\d+", "0", plain)
    for size in range(1, min(LONGEST, len(plain) // TIMES) + 1):
        tail = plain[-max(TIMES * size, SHORTEST) :]
        if len(tail) >= SHORTEST and tail[size:] == tail[:-size]:
            return True
    return False


def distinct(text: str) -> float | None:
    """Return the share of different words among the words of a text, if it has any."""
    words = re.findall(r"\w+", text.lower())
    return len(set(words)) / len(words) if words else None


def shared_start(first: Sequence[int], second: Sequence[int]) -> float:
    """Return which share of the longer answer the two have in common from their start."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same / max(len(first), len(second), 1)


def holds_word(text: str, word: str, *, ignore_case: bool = False) -> bool:
    """Tell whether a text holds a word as a whole one."""
    flags = re.IGNORECASE if ignore_case else re.NOFLAG
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, flags) is not None
