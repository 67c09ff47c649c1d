"""One beam of a beam search as the engine's host."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import Unsupported
from sglang_lp.server.scheduler.sglang_host import SglangHost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp._engine.history.host import Seen
    from sglang_lp.edits import End
    from sglang_lp.errors import SglangLpError
    from sglang_lp.server.scheduler.beams.search import Search
    from sglang_lp.server.scheduler.pending import PendingResults


class BeamHost(SglangHost):
    """One beam of a request.

    SGLang ignores ``beam_width`` in a session: without a search the request is like any other.

    Args:
        req: SGLang's request, the leader of the beams, or a proxy of it.
        pending: As for :class:`SglangHost`.
        names: As for :class:`SglangHost`.

    Attributes:
        search: The beam search, once SGLang has made its group; ``None`` without one.
        output_ids: The generated tokens of this beam. Empty if the processor does not need them.
    """

    __slots__ = ("output_ids", "search")

    def __init__(self, req: Any, pending: PendingResults, names: Sequence[str] = ()) -> None:
        super().__init__(req, pending, names)
        self.search: Search | None = None
        self.output_ids = array("q")

    def look(self, *, tokens: bool) -> Seen:
        search, req = self.search, self.request
        if search is None:
            return super().look(tokens=tokens)
        counts = search.goes_on and not self.pending.discards(req)
        return req.origin_input_ids, self.output_ids, (), search.position, counts

    def end(self, error: SglangLpError) -> None:
        if self.search is None:
            super().end(error)
        else:
            self.search.fail(error)

    def finish(self, end: End) -> None:
        if self.search is None:
            return super().finish(end)
        return self.end(
            Unsupported(
                f"a processor ends the answer ({end.reason}), which it cannot do to one beam of "
                "several; leave out beam_width or the processor"
            )
        )
