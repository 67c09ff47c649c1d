"""A bound on the processor time that the grammar of one request takes in SGLang's scheduler.

xgrammar keeps every way in which a grammar reads the answer so far, so the masks of a grammar with
many ways, such as ``(a+)+b``, take longer with each token, and all other requests wait for them.
No check of a pattern foresees this for all that a grammar may be.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import RequestError
from sglang_lp.server.gate.request_fields import GRAMMARS
from sglang_lp.server.scheduler.endings import end_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang_lp.server.gate.guard import Guard

#: Seconds of each mask and each token that are not counted.
EACH = 0.001
#: Seconds that are counted of one request before it ends.
MOST = 0.5

#: Attribute of SGLang's grammar of one request: the seconds that are counted, once a call was slow.
_COUNTED = "sglang_lp_counted"


def fill(original: Callable[..., None], grammar: Any, vocab_mask: Any, idx: int) -> None:
    """Fill a row of the mask, and count the time: a hook around SGLang's function."""
    _count(partial(original, grammar, vocab_mask, idx), grammar)


def accept(original: Callable[..., None], grammar: Any, token: int) -> None:
    """Follow a token, and count the time: a hook around SGLang's function."""
    _count(partial(original, grammar, token), grammar)


def _count(call: Callable[[], None], grammar: Any) -> None:
    """Count what is above :data:`EACH`; what is below it makes up for earlier excess.

    The clock of a thread takes microseconds, so the wall clock finds the first call that may be
    slow. That call is not counted: other processes may have had the core meanwhile.
    """
    counted: float | None = getattr(grammar, _COUNTED, None)
    if counted is None:
        began = perf_counter()
        call()
        if perf_counter() - began > EACH:
            setattr(grammar, _COUNTED, 0.0)
        return
    began = thread_time()
    call()
    setattr(grammar, _COUNTED, max(0.0, counted + thread_time() - began - EACH))


class GrammarTime:
    """Ends requests whose grammars take too long. :meth:`end` is a hook.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def end(self, _result: None, req: Any, *_args: Any, **_kwargs: Any) -> None:
        """End a request with its next token if its grammar took too long: after each result.

        Ranks of one model measure different times, and have to decide alike: where there are
        several, no request is ended.
        """
        grammar = req.grammar
        if grammar is None or req.finished() or self._guard.server.ranks > 1:
            return
        counted = getattr(getattr(grammar, "grammar", grammar), _COUNTED, 0.0)
        if counted > MOST:
            sampling = req.sampling_params
            name = next((one for one in GRAMMARS if getattr(sampling, one, None)), GRAMMARS[0])
            end_request(
                req,
                RequestError(
                    f"{name}: expected a grammar that takes at most {EACH * 1e3:g} ms for a mask "
                    f"or a token, and {MOST:g} s beyond that in all, got {counted:.1f} s more; "
                    r"give repeated parts one way to read a text, as in (\w+ )*\w+ for (\w+ ?)*"
                ),
            )
