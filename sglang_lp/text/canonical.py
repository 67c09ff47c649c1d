"""The canonically equivalent forms of a text in Unicode: ``é``, or ``e`` and an accent."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING
from unicodedata import combining, decomposition, normalize

from sglang_lp.caches import shared_by_copies
from sglang_lp.errors import RequestError, shown
from sglang_lp.text.encoding import MAX_BYTES

if TYPE_CHECKING:
    from sglang_lp.text.vocabulary import Vocabulary

#: Most forms of one text, and of all texts together: they are compiled when a request arrives.
_MOST, _MOST_TOGETHER = 1_000, 3_072

#: Vowels and finals of Hangul, whose syllables Unicode composes by a rule.
_VOWELS = range(0x1161, 0x1176)
_FINALS = range(0x11A8, 0x11C3)


@shared_by_copies
def in_all_forms(vocabulary: Vocabulary, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts with all of their canonically equivalent forms that the model can write.

    Raises:
        RequestError: There are too many forms, or they are too long together.
    """
    alphabet = vocabulary.exact.alphabet
    found: list[str] = []
    left, count = MAX_BYTES, 0
    for text in texts:
        forms = canonical_forms(text, _MOST)
        count += len(forms)
        for form in forms:
            written = form.encode()
            left -= len(written)
            if form == text or alphabet.issuperset(written):
                found.append(form)
        if left < 0 or count > _MOST_TOGETHER:
            raise RequestError(
                f"expected words that have at most {MAX_BYTES} bytes of UTF-8 in all of their "
                f"canonically equivalent forms together, which are at most {_MOST_TOGETHER}, got "
                f"more with {shown(text)}"
            )
    return tuple(found)


def canonical_forms(text: str, limit: int) -> list[str]:
    """Return all texts that are canonically equivalent to a text, itself included.

    Args:
        text: A character or more.
        limit: Most forms.

    Raises:
        RequestError: There are more.
    """
    decomposed, after = normalize("NFD", text), joining()
    if decomposed == text and after.isdisjoint(text) and _compositions().keys().isdisjoint(text):
        return [text]
    parts: list[str] = []
    for character in decomposed:
        if parts and character in after:
            parts[-1] += character
        else:
            parts.append(character)
    forms = [_forms(part, limit) for part in parts]
    if math.prod(map(len, forms)) > limit:
        raise RequestError(
            f"expected words that have at most {limit} canonically equivalent forms, got more for "
            f"{shown(text)}"
        )
    return ["".join(chosen) for chosen in product(*forms)]


@lru_cache(maxsize=1024)
def _forms(part: str, limit: int) -> list[str]:
    """Return the forms of a character and its marks; some of them if more than ``limit``."""
    queue, found = [part], {part}
    for form in queue:
        for other in _steps(form):
            if other not in found:
                found.add(other)
                queue.append(other)
        if len(queue) > limit:
            break
    return queue


def _steps(form: str) -> list[str]:
    others = [
        form[:at] + composed + form[at + 1 :]
        for at, character in enumerate(form)
        for composed in _compositions().get(character, ())
    ]
    for at, (one, two) in enumerate(pairwise(form)):
        pair = normalize("NFC", one + two)
        together = [*_compositions().get(one + two, ()), *([pair] if len(pair) == 1 else ())]
        if 0 != combining(one) != combining(two) != 0:
            together.append(two + one)
        others += [form[:at] + made + form[at + 2 :] for made in together]
    return others


@lru_cache(maxsize=1)
def joining() -> frozenset[str]:
    """Return the characters that can compose with the characters before them."""
    found = {character for character in map(chr, range(sys.maxunicode + 1)) if combining(character)}
    found.update(*(normalize("NFD", text)[1:] for text in _compositions()))
    return frozenset(found.union(map(chr, (*_VOWELS, *_FINALS))))


@lru_cache(maxsize=1)
def _compositions() -> dict[str, list[str]]:
    """Return the characters that decompose to each text; all but the syllables of Hangul."""
    found: dict[str, list[str]] = {}
    for character in map(chr, range(sys.maxunicode + 1)):
        decomposed = decomposition(character)
        if decomposed and decomposed[0] != "<":
            text = "".join(chr(int(number, 16)) for number in decomposed.split())
            found.setdefault(text, []).append(character)
    return found
