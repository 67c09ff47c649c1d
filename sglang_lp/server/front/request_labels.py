"""Bounded labels of SGLang's metrics of HTTP requests, which it keeps for the life of the process.

SGLang labels a request by its path and method, also where no route answers it. A client that asks
for ever new paths would fill the memory of the HTTP process and the answers of ``/metrics``.
"""

from __future__ import annotations

from typing import Any

#: Label of every path and method that SGLang does not serve.
OTHER = "other"
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))


def bound(found: tuple[str, bool], request: Any) -> tuple[str, bool]:
    """Give all paths without a route the same label: a hook.

    Args:
        found: Path of the request, and whether a route answers it.
        request: The request. A method that HTTP servers do not have in common is renamed: SGLang
            reads it next, and answers it with HTTP 404 or 405 as well.
    """
    if found[1]:
        return found
    if request.scope["method"] not in _METHODS:
        request.scope["method"] = OTHER
    return OTHER, False
