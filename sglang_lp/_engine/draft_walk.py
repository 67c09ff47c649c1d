"""The walk of a processor along the drafted tokens of its request.

Called by the batch in verify steps of speculative decoding.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.step import Step, ask, schedule
from sglang_lp.edits import NEVER

if TYPE_CHECKING:
    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row


def visit_drafts(step: Step, index: int, row: Row, drafts: Drafts) -> None:
    """Ask the processor of a request for the edits of each node of its draft."""
    request = row.request
    first = index * step.width
    wake = 0
    try:
        if not row.accept_tokens():
            return
        if row.dense:
            step.dense[first] = row.processor.wholes(request, step.custom_params[index])
        else:
            wake = _edit_root(step, first, row)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        row.end(row.fault(error))
        return
    if request.position + step.width <= wake:
        return
    state, position, length = request.state, request.position, len(row.tokens)
    try:
        _Walk(step, index, row, drafts, wake).below(0, state, owned=False)
    finally:
        request.state, request.position = state, position
        del row.tokens[length:]


def edit_computed(step: Step, index: int, row: Row) -> None:
    """Ask a processor for the edits of a node whose row other processors computed."""
    seen = step.views.get(index)
    if seen is None:
        _edit_root(step, index, row)
        return
    request = row.request
    before = request.state, request.position, request.output_ids
    request.state, request.position, request.output_ids = seen.state, seen.position, seen.output_ids
    try:
        recording = ask(step, index, row, drafted=True)
        if recording.end is not None:
            row.host.finish_at(*step.nodes[index], recording.end)
    finally:
        request.state, request.position, request.output_ids = before


def _edit_root(step: Step, index: int, row: Row) -> int:
    """Ask for the edits after the newest token; return the position where the row wakes."""
    root = ask(step, index, row)
    schedule(step, row, root)
    if root.end is not None:
        row.host.finish_at(row.request.position, (), root.end)
        return NEVER
    return root.wake or 0


class _Walk:
    """Visits the nodes of one draft, depth first, with forks of the processor's state."""

    def __init__(self, step: Step, index: int, row: Row, drafts: Drafts, wake: int) -> None:
        self._step = step
        self._row = row
        self._first = index * step.width
        self._custom_params = step.custom_params[index]
        self._token_ids = drafts.token_ids[index]
        self._first_child = drafts.first_child[index]
        self._next_sibling = drafts.next_sibling[index]
        self._root = row.request.position
        self._known = len(row.tokens)
        self._limit = row.host.limit + row.host.resumed
        self._wake = wake
        self._path: list[int] = []

    def below(self, node: int, state: Any, *, owned: bool) -> None:
        """Visit the nodes below a node. The tokens and the path keep what is appended.

        Args:
            node: The node.
            state: The processor's state at the node.
            owned: Whether the state is a fork without other users.
        """
        row, path = self._row, self._path
        request, tokens, processor, dense = row.request, row.tokens, row.processor, row.dense
        position = self._root + len(path) + 1
        child = self._first_child[node]
        while child >= 0 and position < self._limit:
            sibling = self._next_sibling[child]
            token_id = self._token_ids[child]
            path.append(token_id)
            request.state, request.position = state, position
            try:
                # A processor that computes whole rows has not yet computed the nodes above.
                if not owned or sibling >= 0 or dense:
                    request.state = processor.fork(request)
                tokens.append(token_id)
                processor.advance(request, [token_id])
                goes_on = position < self._wake or self._visit(self._first + child, position)
            except BaseException as error:  # noqa: BLE001 - ends the request if the draft is accepted
                row.host.end_at(position, [*path], row.fault(error))
                goes_on = False
            if sibling >= 0:
                if goes_on:
                    self.below(child, request.state, owned=True)
                above = position - self._root - 1
                del path[above:], tokens[self._known + above :]
                child = sibling
            elif goes_on:  # follow the last branch without a recursive call
                state, owned, child = request.state, True, self._first_child[child]
                position += 1
            else:
                break

    def _visit(self, index: int, position: int) -> bool:
        """Ask for the edits of a node; return whether to visit its children."""
        step, row, path = self._step, self._row, [*self._path]
        step.nodes[index] = position, path
        if not row.dense:
            recording = ask(step, index, row, drafted=True)
            if recording.end is None:
                return True
            row.host.finish_at(position, path, recording.end)
            return False
        request = row.request
        request.output_ids = row.tokens[:]  # the row is computed after the walk
        step.views[index] = seen = copy(request)
        step.dense[index] = row.processor.wholes(seen, self._custom_params)
        request.output_ids = row.tokens
        return True
