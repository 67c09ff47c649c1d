"""The check of every body that SGLang's HTTP app parses, by the table of routes.

It runs where SGLang has just parsed a body, before anything else reads it. So a body is parsed
once, the check and SGLang read the same keys, and a refusal is the whole answer, for a stream too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import RequestError, shown
from sglang_lp.server.front import routes
from sglang_lp.server.front.answer_errors import noting
from sglang_lp.server.front.bounds import MAX_CHARACTERS_OF_TOKEN
from sglang_lp.server.front.chat_templates import check_chat_template
from sglang_lp.server.front.header import find_endpoint
from sglang_lp.server.front.rendered_texts import check_rendered
from sglang_lp.trust import Gate
from sglang_lp.trust.audit import Asking, asking

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard


#: Most levels of lists and objects in a body: SGLang shows wrong bodies in its errors, and Python
#: shows, copies and writes no more than some hundred levels.
MAX_DEPTH = 128
#: Levels whose keys are names of fields: those of a body, and of an object of parameters in it.
_NAMED = 2
_CONTAINERS = (dict, list)
#: The charset of forms, in a lowercase Content-Type.
_UTF8 = re.compile(r';\s*charset="?utf-8"?\s*(?=;|$)')


class Bodies:
    """Checks bodies. ``check_event`` is a hook.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def watch(self, request: Any) -> None:
        """Check the bodies that requests of SGLang's app parse.

        Args:
            request: Class of the requests. Its methods ``json`` and ``form`` are replaced.
        """
        parse, read = request.json, request.form

        @wraps(parse)
        async def json(one: Any) -> Any:
            is_new = not hasattr(one, "_json")
            body = await parse(one)
            if is_new:
                raw = await one.body()
                if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
                    with self._refusing():
                        check_depth(body)
                self._check(one.scope, body)
                self._check_rendered(one.scope, body, len(raw))
            return body

        @wraps(read)
        async def form(one: Any, **limits: Any) -> Any:
            with self._refusing():
                check_charset(one.headers.get("content-type", ""))
            fields = await read(one, **limits)
            self._check(one.scope, fields)
            return fields

        request.json, request.form = json, form

    def check_event(self, raw: Any) -> None:
        """Check an event of a WebSocket session.

        Raises:
            ValidationError: Pydantic's, which SGLang answers with an error event.
        """
        try:
            routes.check_event(raw)
        except RequestError as error:
            self._tell(error)
            from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

            detail = PydanticCustomError("refused", "{why}", {"why": str(error)})
            wrong = InitErrorDetails(type=detail, loc=("session",), input=None)
            raise ValidationError.from_exception_data("event", [wrong]) from error

    def _check(self, scope: Mapping[str, Any], body: Any) -> None:
        """Check a body.

        Raises:
            HTTPException: It is refused; SGLang writes the answer in the form of its route.
        """
        with self._refusing():
            routes.check(scope, body)
            check_chat_template(body, trusted=self._guard.server.trusts_templates)

    def _check_rendered(self, scope: Mapping[str, Any], body: Any, nbytes: int) -> None:
        """Check the texts of a body of so many bytes, no less than its characters."""
        context, route = self._guard.server.context, routes.find(scope)
        if route is None or context is None or nbytes <= context * MAX_CHARACTERS_OF_TOKEN:
            return
        with self._refusing():
            check_rendered(body, route.rendered, context)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Answer a refusal of the block with HTTP 400."""
        try:
            yield
        except RequestError as error:
            from fastapi import HTTPException

            self._tell(error)
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error

    def _tell(self, error: RequestError) -> None:
        """Count a refusal, and note it for the audit trail and the answer."""
        asking.set(Asking(find_endpoint()))
        self._guard.gate = Gate.ADMISSION
        with suppress(RequestError), noting(), self._guard.counting():
            raise error


def check_charset(content_type: str) -> None:
    """Refuse a form in another charset than UTF-8.

    Starlette decodes a form by whichever codec of Python's its client names: ``punycode`` takes a
    time that grows with the square of the text, and each unknown name stays in memory.

    Args:
        content_type: Of the form.

    Raises:
        RequestError: It names another charset.
    """
    if "charset" in _UTF8.sub("", content_type.lower()):
        raise RequestError(
            f"Content-Type: expected a form in UTF-8, got {shown(content_type, 200)}; leave out "
            "charset"
        )


def check_depth(body: Any) -> None:
    """Refuse a body of too many levels.

    Args:
        body: As SGLang has parsed it.

    Raises:
        RequestError: It has more than :data:`MAX_DEPTH`.
    """
    depth, level = 0, [("body", body)] if isinstance(body, _CONTAINERS) else []
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RequestError(
                f"{level[0][0]}: expected at most {MAX_DEPTH} levels of lists and objects, got more"
            )
        level = [
            (str(key) if depth <= _NAMED and isinstance(part, dict) else name, inner)
            for name, part in level
            for key, inner in (part.items() if isinstance(part, dict) else enumerate(part))
            if isinstance(inner, _CONTAINERS)
        ]
