"""The requests that SGLang makes of one HTTP request, so that an abort reaches these and no others.

SGLang gives the texts of a list and the copies of ``n`` ids of their own, and after a stream it
aborts whatever request has the stream's id by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from sglang_lp.errors import RequestError, shown
from sglang_lp.server.front.answer_errors import noting
from sglang_lp.server.front.header import name_asking
from sglang_lp.server.gate.any_worker import for_any_worker

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

#: Attribute of SGLang's request in this process, which its copies inherit.
_FAMILY = "sglang_lp_family"
#: Seconds between the end of a stream and the abort of its requests that still run: SGLang's.
_GRACE = 2.0


class _RequestFamily:
    """The requests of one HTTP request; freed with SGLang's objects for them.

    Attributes:
        name: The client's ``rid``; ``None`` without one, or for a list of them.
        states: A reference to SGLang's state of each request, by id.
    """

    __slots__ = ("__weakref__", "name", "states")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.states: dict[str, ref[Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ()  # SGLang can pickle requests into a file, for a process without this package

    def running(self, manager: Any) -> list[str]:
        """Return the ids of the requests that SGLang has not forgotten."""
        current = manager.rid_to_state.get
        states = ((rid, state()) for rid, state in [*self.states.items()])
        return [rid for rid, state in states if state is not None and current(rid) is state]


class Families:
    """The HTTP requests of one front end. ``begin``, ``join`` and ``abort_later`` are hooks.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        #: By the client's ``rid``, where no request itself has that id.
        self._named: WeakValueDictionary[str, _RequestFamily] = WeakValueDictionary()

    def begin(self, manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
        """Begin a family with a body that SGLang is about to normalize.

        Raises:
            RequestError: The ``rid`` is that of requests that run.
        """
        name = obj.rid if isinstance(obj.rid, str) else None
        self._check(manager, name)
        setattr(obj, _FAMILY, _RequestFamily(name))

    def join(self, _result: None, manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
        """Add requests that SGLang has given ids."""
        family = getattr(obj, _FAMILY, None)
        if family is None:
            return
        for one in _parts(obj):
            setattr(one, _FAMILY, family)
            family.states[one.rid] = ref(manager.rid_to_state[one.rid])
        if family.name is not None and family.name not in family.states:
            self._named[family.name] = family

    def abort_later(self, manager: Any, obj: Any) -> Any:
        """Return the task after a stream: abort its own requests that still run.

        Raises:
            HTTPException: The ``rid`` is that of requests that run; a later refusal would be an
                event of the stream.
        """
        from fastapi import HTTPException
        from starlette.background import BackgroundTask

        if not hasattr(obj, "is_single"):  # SGLang has not taken it yet
            try:
                for rid in obj.rid if isinstance(obj.rid, list) else [obj.rid]:
                    if isinstance(rid, str):
                        self._check(manager, rid)
            except RequestError as error:
                raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error
        return BackgroundTask(_abort_left, manager, obj)

    def members(self, manager: Any, rid: str) -> list[str]:
        """Return the ids of the requests that a client means by a ``rid``; else that ``rid``."""
        family = self._named.get(rid)
        return [rid] if family is None else family.running(manager) or [rid]

    def _check(self, manager: Any, rid: str | None) -> None:
        if rid is None:
            return
        family = self._named.get(rid)
        if rid in manager.rid_to_state or (family is not None and family.running(manager)):
            name_asking(rid)
            with noting(), self._guard.counting():
                raise RequestError(
                    f"rid: expected an id of its own, got {shown(rid, 100)}, whose request still "
                    "runs; wait for its end, choose another or leave it out"
                )


def abort_anywhere(manager: Any, rid: str) -> bool:
    """Abort a request of another tokenizer worker; tell whether there can be one."""
    if rid in manager.rid_to_state or manager.server_args.tokenizer_worker_num == 1:
        return False
    manager._dispatch_to_scheduler(for_any_worker(rid))  # noqa: SLF001 - as SGLang does itself
    return True


def _parts(obj: Any) -> Iterator[Any]:
    """Yield a request, or those of a list."""
    if getattr(obj, "is_single", True):
        yield obj
    else:
        for i in range(len(obj.rid)):
            yield obj[i]


async def _abort_left(manager: Any, obj: Any) -> None:
    await asyncio.sleep(_GRACE)
    family = getattr(obj, _FAMILY, None)
    for rid in () if family is None else family.running(manager):
        manager.abort_request(rid)
