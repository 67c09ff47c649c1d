"""Texts as bytes of UTF-8: case, and characters that are not finished."""

from __future__ import annotations

#: By the length of a character in bytes, the smallest number that is written with so many.
_SMALLEST = {2: 0x80, 3: 0x800, 4: 0x10000}


def folded(text: bytes) -> bytes:
    """Return a text without the difference of upper and lower case, as ``str.casefold`` does.

    What is no UTF-8 stays as it is, a character that is not finished included, so that folding
    goes on: ``folded(folded(a) + b) == folded(a + b)``.
    """
    if text.isascii():
        return text.lower()
    return text.decode("utf-8", "surrogateescape").casefold().encode("utf-8", "surrogateescape")


def unfinished(text: bytes) -> int:
    """Return with how many bytes of an unfinished UTF-8 character a text ends; 0 for none."""
    if text[-1:].isascii():
        return 0
    for length in range(1, min(len(text), 3) + 1):
        try:
            text[-length:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return length
        else:
            return 0
    return 0


def lacking(text: bytes) -> int:
    """Return how many bytes the unfinished UTF-8 character lacks that a text ends with."""
    length = unfinished(text)
    first = text[-length:][:1]
    return 2 + (first >= b"\xe0") + (first >= b"\xf0") - length if length else 0


def becoming(beginning: bytes) -> range:
    """Return the numbers of the characters that an unfinished one can become.

    Args:
        beginning: Its first bytes, and no others.
    """
    missing = lacking(beginning)
    length = len(beginning) + missing
    number = beginning[0] & (0xFF >> (length + 1))
    for byte in beginning[1:]:
        number = number << 6 | byte & 0x3F
    return range(max(number << 6 * missing, _SMALLEST[length]), (number + 1) << 6 * missing)
