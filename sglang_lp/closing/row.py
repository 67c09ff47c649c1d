"""The closing of one request: its row of the grammar's mask, narrowed while the room is short."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_lp.closing.distances import NEVER
from sglang_lp.closing.states import DEAD, LOST
from sglang_lp.errors import SglangLpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sglang_lp.closing.plans import Plans

#: Most positions of a text that are remembered: SGLang takes back at most 200 tokens of a draft.
_MOST_KNOWN = 256


class _TextPosition(NamedTuple):
    """A position of the text that was looked at.

    Attributes:
        length: Tokens of the text before it.
        before: Tokens of the answer before the text.
        state: State of the text.
        plan: Token ids that complete the text, the last an end token; empty while there is room
            for a way of single bytes.
        wake: Number of tokens from which on the row is looked at again.
    """

    length: int
    before: int
    state: int
    plan: tuple[int, ...]
    wake: int


class ClosingRow:
    """Keeps the answer of one request completable within its limit.

    At each position it knows a plan that fits. A token is left if a plan fits after it, or if it is
    the first of the known plan, so there is always one. Exact along drafts: :meth:`rewind` takes
    positions back.

    Args:
        plans: Of its grammar.
        limit: Most tokens of the answer, its end token and the tokens before its text included.

    Attributes:
        led: Number of tokens before the first token that was chosen from fewer than the grammar
            allows; ``None`` if there was none.
        given_up: Number of tokens after which a text was in too many states of its grammar to be
            completed for certain; ``None`` if it never was. From there on the row is not narrowed.
    """

    def __init__(self, plans: Plans, limit: int) -> None:
        self.plans = plans
        self.limit = limit
        self.led: int | None = None
        self.given_up: int | None = None
        self._forgotten = plans.states.forgotten
        self._known: list[_TextPosition] = []
        self._begin()

    def lead(self, position: int) -> None:
        """Note that a token is chosen from fewer than the grammar allows.

        Args:
            position: Number of tokens before it.
        """
        if self.led is None:
            self.led = position

    def rewind(self, count: int, position: int) -> None:
        """Take back the tokens of a draft that was not accepted.

        Args:
            count: Tokens of the text that are left.
            position: Tokens of the answer that are left.
        """
        known = self._known
        while known and known[-1].length > count:
            known.pop()
        if not known:
            self._begin()
        if self.led is not None and self.led > position:
            self.led = None
        if self.given_up is not None and self.given_up > position:
            self.given_up = None

    def sleeps(self, count: int, before: int) -> bool:
        """Tell whether the next token need not be looked at.

        Args:
            count: Tokens of the text so far.
            before: Tokens of the answer before the text.
        """
        if self.plans.allowed is not None:
            return False
        if self.given_up is not None:
            return True
        if self.plans.is_narrower:
            return False
        top = self._known[-1]
        return count + before < top.wake and before == top.before

    def narrow(self, row: NDArray[np.int32], accepted: Sequence[int], before: int = 0) -> None:
        """Leave only tokens after which a complete text fits.

        Args:
            row: The grammar's mask for the next token, packed, changed in place; shape
                ``(words,)``.
            accepted: Tokens of the text so far.
            before: Tokens of the answer before the text, as its thinking.
        """
        plans, used = self.plans, before + len(accepted)
        if plans.allowed is not None:
            row.view(np.uint32)[:] &= plans.allowed
            top = self._known[-1]
            if self.given_up is not None or (used < top.wake and before == top.before):
                return
        plans.refresh()
        if self._forgotten != plans.states.forgotten:
            self._forgotten = plans.states.forgotten
            self._begin()
        known = self._follow(accepted, before)
        room = self.limit - used
        if known is None:
            self.given_up = used
            return
        leads = known.wake <= used and room > 0 and plans.reach(known.state) >= room - 1
        if not leads and not plans.is_narrower:
            return
        old = row.view(np.uint32)
        left = room - 1 if leads else NEVER
        new = old & (plans.fitting(known.state, left) | plans.vocabulary.stop_row)
        plan = known.plan
        if not plan and not new.any():
            plan = plans.plan(known.state)
        if plan:  # xgrammar's mask can lack a token that its matcher takes
            new[plan[0] >> 5] |= np.uint32(1 << (plan[0] & 31))
        if leads and self.led is None and not np.array_equal(old, new):
            self.lead(used)
        old[:] = new

    def _begin(self) -> None:
        """Forget all positions but the first."""
        self._known = [_TextPosition(0, 0, self.plans.states.start, self.plans.shortest, 0)]

    def _follow(self, accepted: Sequence[int], before: int) -> _TextPosition | None:
        """Walk the new tokens, and return the position after them; ``None`` if it is lost."""
        length, _, state, plan, _ = self._known[-1]
        spelled, states = self.plans.vocabulary.spelled, self.plans.states
        for token in accepted[length:]:
            state = states.walk(state, spelled[token])
            plan = plan[1:] if plan and plan[0] == token else ()
        if state == LOST:
            return None
        if state == DEAD:
            raise SglangLpError(
                "internal error of sglang-lp: the grammar took a token that its automaton does "
                "not have"
            )
        used = before + len(accepted)
        room = self.limit - used
        if states[state].near >= room > 0:  # no room for single bytes
            if not plan or self.plans.length(state) < len(plan):
                plan = self.plans.plan(state)
            if len(plan) > room:
                raise SglangLpError(
                    f"internal error of sglang-lp: a complete answer takes {len(plan)} more "
                    f"tokens, and {room} are left"
                )
        # After k more tokens at most far + k * growth bytes are missing, and the end.
        asleep = (room - states[state].far - 1) // (self.plans.growth + 1)
        known = _TextPosition(len(accepted), before, state, plan, used + max(0, asleep))
        if len(accepted) == length:
            self._known.pop()
        elif len(self._known) > _MOST_KNOWN:
            del self._known[: _MOST_KNOWN // 2]
        self._known.append(known)
        return known
