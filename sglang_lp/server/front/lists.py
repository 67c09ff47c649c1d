"""Checks a list of requests in slices of time, and lets the event loop run between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sglang_lp.server.front.families import abort_anywhere

if TYPE_CHECKING:
    from sglang_lp.server.front.admission import Admission
    from sglang_lp.server.front.families import Families

#: Seconds of a slice. One check of a request takes about 0.1 ms.
_SLICE = 0.02


class Lists:
    """The lists of requests that are being checked. Its public methods are hooks.

    Args:
        admission: Checks the requests.
        families: Tells which requests an abort means.
    """

    def __init__(self, admission: Admission, families: Families) -> None:
        self._admission = admission
        self._families = families
        #: For each list that is being checked: whether a request was aborted, by its id.
        self._checked: list[dict[str, bool]] = []

    async def admit(
        self, original: Callable[..., Any], manager: Any, obj: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Check every request of a list before SGLang sends the first to the scheduler."""
        await self._check(manager, obj)
        async with aclosing(original(manager, obj, *args, **kwargs)) as answers:
            async for answer in answers:
                yield answer

    def abort(
        self,
        original: Callable[..., None],
        manager: Any,
        rid: str = "",
        abort_all: bool = False,  # noqa: FBT001, FBT002 - SGLang's signature
    ) -> None:
        """Abort requests; those of a list that is being checked, once they are sent.

        SGLang sends an abort to the scheduler, which does not have these requests yet.
        """
        if abort_all:
            for aborted in self._checked:
                aborted.update(dict.fromkeys(aborted, True))
            return original(manager, rid, abort_all)
        for one in self._families.members(manager, rid):
            held = [aborted for aborted in self._checked if one in aborted]
            for aborted in held:
                aborted[one] = True
            if not held and not (one and abort_anywhere(manager, one)):
                original(manager, one, abort_all)
        return None

    async def _check(self, manager: Any, obj: Any) -> None:
        aborted = dict.fromkeys(obj.rid, False)
        self._checked.append(aborted)
        try:
            began = perf_counter()
            for _ in self._admission.check_list(manager, obj):
                if perf_counter() - began > _SLICE:
                    await asyncio.sleep(0)
                    began = perf_counter()
        finally:
            self._checked = [one for one in self._checked if one is not aborted]
        for rid in [rid for rid, is_aborted in aborted.items() if is_aborted]:
            # It comes as an abort that arrived right after the check.
            asyncio.get_running_loop().call_soon(manager.abort_request, rid)
