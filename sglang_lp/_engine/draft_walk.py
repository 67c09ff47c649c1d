"""The walk of a row along the drafted tokens of its request.

Called by the batch in verify steps of speculative decoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp._engine.step import Step, ask
from sglang_lp.edits import NEVER

if TYPE_CHECKING:
    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row
    from sglang_lp._engine.turns.turn_list import States


def visit_drafts(step: Step, index: int, row: Row, drafts: Drafts) -> bool:
    """Ask the processors of a request for the edits of each node of its draft.

    Returns:
        Whether they were asked, and no phase may open or close within the draft.
    """
    first = index * step.width
    apart = False
    try:
        if not row.accept_tokens():
            return False
        apart = row.may_switch(drafts.token_ids[index])
        if apart:
            step.apart.add(index)
        if row.dense:
            step.dense[first] = row.wholes(step.custom_params[index])
            row.wakes_at = 0
        else:
            _edit_root(step, first, row, apart=apart)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        row.end(row.fault(error))
        return False
    if apart:
        row.wakes_at = 0  # turns in a phase edit at every node where it is open
    if row.position + step.width <= row.wakes_at:
        return not apart
    states, position, length = row.states, row.position, len(row.tokens)
    try:
        _Walk(step, index, row, drafts, apart=apart).below(0, states, owned=False)
    finally:
        del row.tokens[length:]
        row.put(states, position)
    return not apart


def edit_computed(step: Step, index: int, row: Row) -> None:
    """Ask for the edits of a node whose row processors computed whole."""
    seen = step.states.get(index)
    apart = index // step.width in step.apart
    if seen is None:
        _edit_root(step, index, row, apart=apart)
        return
    (position, path), before = step.nodes[index], (row.states, row.position)
    length = len(row.tokens)
    row.tokens.extend(path)
    try:
        row.put(seen, position)
        recording = ask(step, index, row, drafted=True, apart=apart)
        if recording.end is not None:
            row.host.finish_at(position, path, recording.end)
    finally:
        del row.tokens[length:]
        row.put(*before)


def _edit_root(step: Step, index: int, row: Row, *, apart: bool) -> None:
    """Ask for the edits after the newest token."""
    root = ask(step, index, row, apart=apart)
    if root.end is not None:
        row.host.finish_at(row.position, (), root.end)
        row.wakes_at = NEVER


class _Walk:
    """Visits the nodes of one draft, depth first, with forks of the processors' states."""

    def __init__(self, step: Step, index: int, row: Row, drafts: Drafts, *, apart: bool) -> None:
        self._step = step
        self._row = row
        self._first = index * step.width
        self._custom_params = step.custom_params[index]
        self._token_ids = drafts.token_ids[index]
        self._first_child = drafts.first_child[index]
        self._next_sibling = drafts.next_sibling[index]
        self._root = row.position
        self._known = len(row.tokens)
        self._limit = row.host.limit + row.host.resumed
        self._wake = row.wakes_at
        self._apart = apart
        self._path: list[int] = []

    def below(self, node: int, states: States, *, owned: bool) -> None:
        """Visit the nodes below a node. The tokens and the path keep what is appended.

        Args:
            node: The node.
            states: What the processors know at the node.
            owned: Whether the states are forks without other users.
        """
        row, path = self._row, self._path
        tokens, dense = row.tokens, row.dense
        position = self._root + len(path) + 1
        child, is_there = self._first_child[node], False
        while child >= 0 and position < self._limit:
            sibling = self._next_sibling[child]
            token_id = self._token_ids[child]
            path.append(token_id)
            try:
                if not is_there:
                    row.put(states, position - 1)
                # A processor that computes whole rows has not yet computed the nodes above.
                if not owned or sibling >= 0 or dense:
                    row.fork_states()
                row.draft(token_id, position)
                goes_on = position < self._wake or self._visit(self._first + child, position)
            except BaseException as error:  # noqa: BLE001 - ends the request if the draft is accepted
                row.host.end_at(position, [*path], row.fault(error, position))
                goes_on = False
            if sibling >= 0:
                if goes_on:
                    self.below(child, row.states, owned=True)
                above = position - self._root - 1
                del path[above:], tokens[self._known + above :]
                child, is_there = sibling, False
            elif goes_on:  # follow the last branch without a recursive call
                child, owned, is_there = self._first_child[child], True, True
                if child >= 0 and self._next_sibling[child] >= 0:
                    states = row.states
                position += 1
            else:
                break

    def _visit(self, index: int, position: int) -> bool:
        """Ask for the edits of a node; return whether to visit its children."""
        step, row, path = self._step, self._row, [*self._path]
        step.nodes[index] = position, path
        if not row.dense:
            recording = ask(step, index, row, drafted=True, apart=self._apart)
            if recording.end is None:
                return True
            row.host.finish_at(position, path, recording.end)
            return False
        step.states[index] = row.states
        step.dense[index] = row.wholes_now(self._custom_params)
        return True
