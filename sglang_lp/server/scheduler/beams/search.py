"""The progress of SGLang's search for one request, and the error that ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.server.scheduler.endings import end_request

if TYPE_CHECKING:
    from sglang_lp.errors import SglangLpError


class Search:
    """A beam search with processors.

    Args:
        group: SGLang's ``BeamGroup``.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._error: tuple[int, SglangLpError] | None = None

    @property
    def position(self) -> int:
        """Number of tokens of each beam before the token that is selected now."""
        return int(self._group.num_generated)

    @property
    def num_candidates(self) -> int:
        """Number of continuations of each beam that SGLang looks at."""
        return int(self._group.num_candidates)

    @property
    def has_failed(self) -> bool:
        """Whether an error ends the search, now or when an earlier step is committed."""
        return self._error is not None

    @property
    def goes_on(self) -> bool:
        """Whether the token that is selected now can become part of an answer."""
        return self._error is None and self.position < self._group.max_new_tokens

    def fail(self, error: SglangLpError) -> None:
        """End the request with an error, unless an earlier step ends it.

        With overlap scheduling the preceding step is not committed yet, and may be the last.
        """
        if self._error is None:
            self._error = self.position, error

    def end_if_failed(self) -> None:
        """Let SGLang abort the request, if the step that failed is the next that it commits."""
        if self._error is None:
            return
        position, error = self._error
        leader = self._group.leader
        if self._group.num_committed >= position and leader.to_finish is None:
            end_request(leader, error)
