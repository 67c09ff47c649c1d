"""Rows attached to requests: kept in the ``custom_params`` of a request, and released with it.

SGLang makes this dict for each request, and hands it to the sampler at each step. The scheduler's
gate attaches rows; each step looks them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.history.host import Host, host_of
from sglang_lp._engine.history.row import Row

if TYPE_CHECKING:
    from sglang_lp.links import Serving


class _Slot:
    """Key of a request's row in its ``custom_params``; no JSON object can spell it."""

    def __repr__(self) -> str:
        return "<sglang_lp row>"


_SLOT = _Slot()


def rows_of(custom_param_list: Sequence[Any]) -> list[Row | None]:
    """Return the row of each request, ``None`` for a request without one.

    Args:
        custom_param_list: For each request SGLang's ``custom_params``, with ``__req__`` in it, or
            ``None``.
    """
    try:  # nearly always, every request has a row
        return [
            # A dict may have been copied together with the row of another request.
            row if (row := custom_params[_SLOT]).source is custom_params["__req__"] else None
            for custom_params in custom_param_list
        ]
    except (KeyError, TypeError):  # a request without a row may have sent anything
        return [
            row
            if isinstance(custom_params, dict)
            and (row := custom_params.get(_SLOT)) is not None
            and row.source is custom_params.get("__req__")
            else None
            for custom_params in custom_param_list
        ]


def attach_row(custom_params: Any, servings: Sequence[Serving], host: Host | None = None) -> Row:
    """Make the row of a request and keep it in its ``custom_params``.

    Args:
        custom_params: As for :func:`rows_of`. Without ``__req__`` nothing is kept.
        servings: The processors of the request, as :func:`sglang_lp.links.prepare` returns them.
        host: Host of the request; ``None`` to find it.
    """
    source = custom_params.get("__req__")
    row = Row(servings, host_of(source) if host is None else host)
    if source is not None:
        custom_params[_SLOT] = row
    return row


def detach_row(custom_params: Any) -> None:
    """Release the row of a request that has finished, with everything that it keeps.

    Args:
        custom_params: As for :func:`rows_of`, of one request.
    """
    if isinstance(custom_params, dict):
        custom_params.pop(_SLOT, None)
