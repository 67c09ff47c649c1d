"""How much one HTTP request may ask for, in all its copies and texts together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_lp.errors import RequestError

__all__ = ["MAX_LISTED", "check_listed"]

#: Most entries of lists, in all rows that one HTTP request becomes. Each takes some 0.03 µs at
#: arrival; more would keep the scheduler for longer than 25 ms (``make bench-bounds``).
MAX_LISTED = 524_288


def check_listed(rows: Iterable[tuple[Any, int]]) -> None:
    """Refuse an HTTP request whose rows list too much together.

    Args:
        rows: For each text of the request its ``custom_params``, and the number of its copies
            (``n``).

    Raises:
        RequestError: The lists of all rows together are longer than ``MAX_LISTED``.
    """
    listed = sum(_entries(custom_params) * copies for custom_params, copies in rows)
    if listed > MAX_LISTED:
        raise RequestError(
            f"expected lists of at most {MAX_LISTED} entries in custom_params of all texts and "
            f"copies (n) of one request together, got {listed}; make the lists shorter, or send "
            "the texts in several requests"
        )


def _entries(custom_params: Any) -> int:
    if not isinstance(custom_params, Mapping):
        return 0
    values = custom_params.values()
    return sum(len(value) for value in values if isinstance(value, list | tuple | set | frozenset))
