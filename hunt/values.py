"""Ids, texts and numbers as clients spell them: mostly right, and sometimes oddly."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = [
    "CLOSING",
    "END",
    "EOS",
    "QUESTIONS",
    "START",
    "TOKENS",
    "VOCAB",
    "chance",
    "counts",
    "ids",
    "lists",
    "oddly",
    "seldom",
    "texts",
    "word_ids",
    "words",
]

#: Of the demo's model.
VOCAB = 1157
IM_START, EOS, START, END, NEWLINE = 1151, 1152, 1153, 1154, 198
#: Tokens that close a block: a new line and its end.
CLOSING = 2

QUESTIONS = ("What is 2 + 3?", "Name the capital of France.", "Which animal says moo?")

#: Texts that are one token of the model.
TOKENS = ("Two", " numbers", " and", " sum", ":", ".", " five", "\n", " sheep", "<td>", "Wait")
#: Texts of the model, of the policies, delimiters, and characters of several bytes.
_PIECES = (
    *TOKENS,
    *(" plus sign", "Two numbers", "\nTwo numbers and", " AI says:", " trumpet", "Paris", " fi"),
    *("<think>", "</think>", "</think>\n", "<|im_end|>", "<|im_start|>", "<tool_call>", "im_end"),
    *("é", "naïve", "😀", "ß", " ", "a", "AI", "5", "wo num"),
)
#: How the model's thoughts on these questions begin.
_NATURAL = ("<think>\nTwo numbers and", "<think>\nAh, geography", "<think>\nI shall go")
_FREQUENT = (NEWLINE, 638, 986, 277, 398, 40, 329, 25, 300, 301, 302)
_SPECIAL = (IM_START, EOS, START, END, 1155, 1156)


def chance(one_in: int) -> st.SearchStrategy[bool]:
    """Draw true once in so many times."""
    # Hypothesis likes the first of a list.
    return st.sampled_from([False] * (one_in - 1) + [True])


def seldom(
    usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], one_in: int = 12
) -> st.SearchStrategy[Any]:
    """Draw from the second strategy once in so many times."""
    return chance(one_in).flatmap(lambda is_odd: odd if is_odd else usual)


def oddly(usual: st.SearchStrategy[Any], one_in: int = 60) -> st.SearchStrategy[Any]:
    """Draw a value that is sometimes spelled in another type, or is missing."""

    def spelled(value: Any) -> st.SearchStrategy[Any]:
        others: list[Any] = [None, str(value), [value], {}]
        if isinstance(value, int | float):
            others += [float(value), -value, value * 10**6, bool(value)]
        return st.sampled_from(others)

    return seldom(usual, usual.flatmap(spelled), one_in)


_ANY = st.sampled_from(_PIECES + _NATURAL * 2)
texts = _ANY | st.lists(_ANY, min_size=1, max_size=4).map("".join)
#: Texts and ids without delimiters, and without ends of an answer.
words = st.sampled_from([*TOKENS, " AI says:", "so:", "é"])
word_ids = st.sampled_from(_FREQUENT)
ids = st.sampled_from(_FREQUENT) | st.sampled_from(_SPECIAL) | st.integers(0, VOCAB - 1)
counts = st.sampled_from([0, 1, 2, 3, 5, 8, 9, 12, 20, 40])


def lists(
    of: st.SearchStrategy[Any], most: int = 5, least: int = 1
) -> st.SearchStrategy[list[Any]]:
    """Draw a short list."""
    return st.lists(of, min_size=least, max_size=most)
