"""All ways in which tokens spell the choices of a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_lp.text.choosing import Choices


def spellings(choices: Choices, most: int) -> dict[Any, list[tuple[int, ...]]] | None:
    """Return the token sequences that spell each choice.

    Args:
        choices: The choices.
        most: Most sequences of all choices together.

    Returns:
        The sequences by the place at which each choice is complete: its text as bytes, for
        choices that are texts. ``None`` if there are more than ``most``.
    """
    found: dict[Any, list[tuple[int, ...]]] = {}
    for count, (place, ids) in enumerate(_walk(choices, choices.start, ()), 1):
        if count > most:
            return None
        found.setdefault(place, []).append(ids)
    return found


def _walk(
    choices: Choices, place: Any, ids: tuple[int, ...]
) -> Iterator[tuple[Any, tuple[int, ...]]]:
    if ids and choices.is_complete(place):
        yield place, ids
    for token_id in choices.continuing(place):
        yield from _walk(choices, choices.step(place, token_id), (*ids, token_id))
