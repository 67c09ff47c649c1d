"""Answers of Ollama's endpoints: a refusal is HTTP 400 in Ollama's form, for a stream too.

SGLang begins these streams before the request is admitted, and lets errors of both forms through as
HTTP 500 or as a broken stream. So a stream begins once it has its first line, and an error later is
a last line, as Ollama's own are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp.server.front.reports import ask_in

if TYPE_CHECKING:
    from sglang_lp.server.front.fields import Reader


class Ollama:
    """Answers requests. ``answer`` is a hook.

    Args:
        reader: Reads the fields of bodies.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def answer(
        self, original: Callable[..., Any], serving: Any, request: Any, raw_request: Any
    ) -> Any:
        """Answer a chat or a prompt.

        Raises:
            HTTPException: The request is refused.
        """
        from fastapi import HTTPException
        from jinja2 import TemplateError

        try:
            self._reader.keep_options(serving, request, raw_request)
            ask_in(request.options)
            response = await original(serving, request, raw_request)
            lines = getattr(response, "body_iterator", None)
            if lines is not None:
                response.body_iterator = _going_on(await anext(lines), lines)
        except (ValueError, TemplateError) as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error
        return response


async def _going_on(first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream; an error becomes the last line."""
    from fastapi import HTTPException

    yield first
    try:
        async for line in lines:
            yield line
    except ValueError as error:
        yield _line(str(error))
    except HTTPException as error:
        yield _line(error.detail)


def _line(message: str) -> bytes:
    return orjson.dumps({"error": message}) + b"\n"
