"""Bytes of UTF-8: case folding, and unfinished characters."""

from __future__ import annotations

#: Number of bytes of a character -> the smallest code point that takes so many.
_SMALLEST = {2: 0x80, 3: 0x800, 4: 0x10000}

#: Most bytes of a text for one byte of the text with its case folded: the Kelvin sign has three.
SHRINKS = 3


def folded(text: bytes) -> bytes:
    """Return a text with its case folded, as by ``str.casefold``.

    Bytes that are no UTF-8 stay as they are, an unfinished character included, so that
    ``folded(folded(a) + b) == folded(a + b)``.
    """
    if text.isascii():
        return text.lower()
    return text.decode("utf-8", "surrogateescape").casefold().encode("utf-8", "surrogateescape")


def unfinished(text: bytes) -> int:
    """Return the number of bytes of the unfinished character at the end of a text; 0 for none."""
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
    """Return how many bytes the unfinished character at the end of a text lacks; 0 for none."""
    length = unfinished(text)
    first = text[-length:][:1]
    return 2 + (first >= b"\xe0") + (first >= b"\xf0") - length if length else 0


def becoming(beginning: bytes) -> range:
    """Return the code points that an unfinished character can become.

    Args:
        beginning: The first bytes of the character, and no others.
    """
    missing = lacking(beginning)
    length = len(beginning) + missing
    number = beginning[0] & (0xFF >> (length + 1))
    for byte in beginning[1:]:
        number = number << 6 | byte & 0x3F
    return range(max(number << 6 * missing, _SMALLEST[length]), (number + 1) << 6 * missing)
