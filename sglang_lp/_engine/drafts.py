"""Drafted tokens of speculative decoding: a tree for each request, and the walk along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.step import Step, ask, schedule

if TYPE_CHECKING:
    from sglang_lp._engine.rows import Row

__all__ = ["Drafts", "visit_drafts"]


class Drafts(NamedTuple):
    """A tree of drafted tokens for each request of a batch.

    Node 0 of a tree is the newest token of the history; the logits of a node are those of the
    token after it. The logits of a request's node stand in row ``request * width + node``.

    Attributes:
        width: Nodes of each tree.
        token_ids: For each request the token of each node.
        first_child: For each request and node the first child, -1 for none.
        next_sibling: For each request and node the next child of the same parent, -1 for none.
    """

    width: int
    token_ids: Sequence[Sequence[int]]
    first_child: Sequence[Sequence[int]]
    next_sibling: Sequence[Sequence[int]]


def visit_drafts(step: Step, index: int, row: Row, drafts: Drafts) -> None:
    """Let one request's processor look at every node of its draft."""
    request = row.request
    first = index * step.width
    try:
        if not row.look():
            return
        root = ask(step, first, row)
        schedule(step, row, root)
        if root.end is not None:
            row.host.finish_at(request.position, (), root.end)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        row.end(row.fault(error))
        return
    wake = 0 if root.wake is None else root.wake
    if root.end is not None or request.position + step.width <= wake:
        return
    state, position, length = request.state, request.position, len(row.tokens)
    try:
        _Walk(step, index, row, drafts, wake).below(0, state, owned=False)
    finally:
        request.state, request.position = state, position
        del row.tokens[length:]


class _Walk:
    """Goes through a draft, branch by branch, with states that are thrown away."""

    def __init__(self, step: Step, index: int, row: Row, drafts: Drafts, wake: int) -> None:
        self._step = step
        self._row = row
        self._first = index * step.width
        self._token_ids = drafts.token_ids[index]
        self._first_child = drafts.first_child[index]
        self._next_sibling = drafts.next_sibling[index]
        self._root = row.request.position
        self._wake = wake
        self._path: list[int] = []

    def below(self, node: int, state: Any, *, owned: bool) -> None:
        """Visit the children of a node.

        Args:
            node: The node.
            state: The processor's state there.
            owned: Whether the state is a fork that nobody else needs.
        """
        row, path = self._row, self._path
        request, tokens = row.request, row.tokens
        length = len(tokens)
        position = self._root + len(path) + 1
        if position >= row.host.limit + row.host.resumed:
            return
        child = self._first_child[node]
        while child >= 0:
            sibling = self._next_sibling[child]
            token_id = self._token_ids[child]
            path.append(token_id)
            request.state, request.position = state, position
            try:
                if not owned or sibling >= 0:
                    request.state = row.processor.fork(request)
                tokens.append(token_id)
                row.processor.advance(request, [token_id])
                goes_on = position < self._wake or self._look(self._first + child, position)
            except BaseException as error:  # noqa: BLE001 - it counts if the draft is accepted
                row.host.end_at(position, [*path], row.fault(error))
                goes_on = False
            if goes_on:
                self.below(child, request.state, owned=True)
            path.pop()
            del tokens[length:]
            child = sibling

    def _look(self, index: int, position: int) -> bool:
        """Ask for the edits of a node; tell whether its children are worth a look."""
        self._step.nodes[index] = position, [*self._path]
        recording = ask(self._step, index, self._row, drafted=True)
        if recording.end is not None:
            self._row.host.finish_at(position, [*self._path], recording.end)
            return False
        return True
