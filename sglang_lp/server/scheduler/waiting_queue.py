"""Requests stay in SGLang's waiting queue until their prompts are read.

The tokens of prompts that processors read between two steps are bounded. So a request may be passed
over for a few steps, as SGLang passes over a request whose KV cache is still being sent.

Requests with ``input_embeds``, which SGLang takes with ``--disable-radix-cache``, begin in batches
of their own: a batch of both kinds ends its scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.history.attached import detach_row, rows_of
from sglang_lp.server.scheduler.beams.steps import beams_of
from sglang_lp.server.scheduler.disaggregated import resume

if TYPE_CHECKING:
    from sglang_lp._engine.history.arrivals import Arrivals
    from sglang_lp._engine.history.row import Row
    from sglang_lp.server.gate.guard import Guard


logger = logging.getLogger(__name__)


class WaitingQueue:
    """SGLang's waiting queue, in which some requests wait longer. Its public methods are hooks.

    Args:
        guard: The guard of this process.
        arrivals: Reads prompts.
    """

    def __init__(self, guard: Guard, arrivals: Arrivals) -> None:
        self._guard = guard
        self._arrivals = arrivals
        #: Requests whose grammars were compiled while a batch is formed; ``None`` at other times.
        self._late: list[Any] | None = None
        #: Whether requests with ``input_embeds`` begin in the batch; ``None`` where none comes.
        self._embeds: bool | None = None

    def hold(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Form a prefill batch of requests that need not wait."""
        waiting = self._read(scheduler, self._guard.server.vocab_size)
        return self._form(original, scheduler, waiting, *args, **kwargs)

    def hold_prebuilt(
        self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Form a decode server's batch of requests that need not wait."""
        # Their first step ran on the prefill server, so no edits are asked for early.
        waiting = self._read(scheduler, None)
        for req in scheduler.waiting_queue:
            if id(req) not in waiting:
                resume(req, self._guard.server.vocab_size)
        return self._form(original, scheduler, waiting, *args, **kwargs)

    def hold_compiled(self, original: Callable[[Any], list[Any]], manager: Any) -> list[Any]:
        """Return the requests whose grammars are compiled and that need not wait.

        The other compiled requests join the queue once the batch is formed.
        """
        ready = original(manager)
        if self._late is None or not (self._arrivals.wait or self._embeds is not None):
            return ready
        now: list[Any] = []
        for req, row in zip(ready, _rows_of(ready), strict=True):
            waits = row is not None and row.unread and self._arrivals.wait
            (self._late if waits or self._is_of_other_kind(req) else now).append(req)
        return now

    def _read(self, scheduler: Any, vocab_size: int | None) -> set[int]:
        """Read prompts of requests that could begin.

        Args:
            scheduler: SGLang's ``Scheduler``.
            vocab_size: As for :meth:`Arrivals.read`.

        Returns:
            The requests that have to wait longer, by ``id``.
        """
        queue = scheduler.waiting_queue
        self._embeds = None
        try:
            rows = _rows_of(queue) if self._arrivals.wait else []
            batches = getattr(scheduler, "running_mbs", ())  # of pipeline ranks
            alone = all(batch.is_empty() for batch in (scheduler.running_batch, *batches))
            waiting = self._arrivals.read(rows, vocab_size, alone=alone)
            later = {id(queue[index]) for index in waiting}
            return later | self._find_other_kind(scheduler, later)
        except Exception:
            logger.exception("sglang-lp: prompts are read in the steps of their requests")
            return set()

    def _find_other_kind(self, scheduler: Any, later: set[int]) -> set[int]:
        """Return the requests of the queue that cannot begin with the first that need not wait."""
        if not scheduler.server_args.disable_radix_cache:
            return set()
        queue = scheduler.waiting_queue
        first = scheduler.chunked_req or next((req for req in queue if id(req) not in later), None)
        self._embeds = first is not None and first.input_embeds is not None
        return {id(req) for req in queue if self._is_of_other_kind(req)}

    def _is_of_other_kind(self, req: Any) -> bool:
        return self._embeds is not None and (req.input_embeds is not None) is not self._embeds

    def _form(
        self,
        original: Callable[..., Any],
        scheduler: Any,
        waiting: set[int],
        *rest: Any,
        **more: Any,
    ) -> Any:
        """Let SGLang form a batch without the requests that wait, and keep their places.

        Args:
            original: SGLang's function, which forms the batch.
            scheduler: SGLang's ``Scheduler``.
            waiting: The result of :meth:`_read`.
            rest: SGLang's other arguments by place.
            more: SGLang's other arguments by name.
        """
        queue = scheduler.waiting_queue
        if waiting:
            scheduler.waiting_queue = [req for req in queue if id(req) not in waiting]
        late: list[Any] = []
        self._late = late
        try:
            return original(scheduler, *rest, **more)
        finally:
            self._late = None
            if waiting:
                scheduler.waiting_queue = _joined(queue, waiting, scheduler.waiting_queue)
            for req in late:
                scheduler._add_request_to_queue(req)  # noqa: SLF001 - as SGLang does it


def _rows_of(queue: Sequence[Any]) -> list[Row | None]:
    """Return the row of each request, ``None`` for a request that needs no prompt to be read.

    SGLang replaces the prompt of a request that it ends before its first step, so the tokens that
    the request resumes are gone.
    """
    # A request for an embedding has no sampling parameters.
    rows = rows_of([getattr(req.sampling_params, "custom_params", None) for req in queue])
    for index, req in enumerate(queue):
        beams = beams_of(getattr(req, "beam_group", None))
        if beams is not None:
            rows[index] = beams.leader
        row = rows[index]
        if row is not None and row.unread and req.to_finish is not None:
            detach_row(req.sampling_params.custom_params)
            rows[index] = None
    return rows


def _joined(queue: list[Any], waiting: set[int], left: list[Any]) -> list[Any]:
    """Return a queue without the requests that SGLang took, and with the requests that it added.

    Args:
        queue: The whole queue before.
        waiting: Requests that SGLang did not see, by ``id``.
        left: The queue that SGLang saw, as SGLang left it: added requests come last.
    """
    keep = waiting | {id(req) for req in left}
    before = {id(req) for req in queue}
    return [
        *(req for req in queue if id(req) in keep),
        *(req for req in left if id(req) not in before),
    ]
