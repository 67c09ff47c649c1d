"""Edits that stay the same until a position, or until a token that tells something new.

Several built-ins edit alike at most of their steps: they ban the same tokens, or ask the device the
same question. Python finds these edits, and how long they last, when a row joins; the compiled code
only repeats them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_lp.forms.bits import bits_of, has_bit
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import FEWEST_STEPS, POSITION, ROW, TOKEN, EditKind, Form
from sglang_lp.forms.out import ASK, ASKS, BAN, DECIDED, EDITED, LACKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

__all__ = ["Held", "HeldForm", "HeldQuestion"]

#: Numbers of a block: the position at which the row is asked by itself; offset and size of the
#: telling tokens (as bits), of the banned tokens and of the tokens of the question; the number of
#: likeliest tokens of the question, and the token that it forces.
_UNTIL, _TELLING, _BITS, _BANS, _MANY, _IDS, _SIZE, _COUNT, _TOKEN = range(9)
_HEAD = 9
_LAST = (1 << 31) - 1


class HeldQuestion(NamedTuple):
    """A question for the device: is one of some tokens among the ``most`` likeliest?

    If it is, a token is forced; if not, the bans of :class:`Held` apply.

    Attributes:
        token_ids: The tokens.
        most: Number of likeliest tokens.
        forced: The token that is forced.
    """

    token_ids: Sequence[int]
    most: int
    forced: int


class Held(NamedTuple):
    """The edits of a row.

    Attributes:
        until: The position from which on other edits may apply.
        telling: The tokens after which other edits may apply.
        banned: The banned tokens, each once.
        question: The question, if there is one.
    """

    until: int
    telling: frozenset[int]
    banned: Sequence[int] = ()
    question: HeldQuestion | None = None


@compiled(
    "void(int32[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1], int64,"
    " int64[::1], int64[::1], int64[:,::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    blocks: Any,
    at: Any,
    unseen: Any,
    first: Any,
    visits: Any,
    stride: Any,
    ban: Any,
    asked: Any,
    questions: Any,
    counts: Any,
    edited: Any,
) -> None:
    """Repeat the edits of each row, and mark ``ASKS`` where they may change.

    ``unseen`` is ``before`` of the group; ``ban`` to ``edited`` are those of ``Out``.
    """
    end, now, width = counts[BAN], counts[ASK], questions.shape[1] - 3
    for row in range(len(blocks)):
        block, place = blocks[row], at[row]
        bits, last = numbers[block + _TELLING], numbers[block + _BITS]
        many, size = np.int64(numbers[block + _MANY]), np.int64(numbers[block + _SIZE])
        bans, ids = np.int64(numbers[block + _BANS]), np.int64(numbers[block + _IDS])
        for visit in range(first[place], first[place + 1]):
            position = visits[visit, POSITION] - unseen[row]
            if position >= numbers[block + _UNTIL] or has_bit(
                numbers, bits, last, visits[visit, TOKEN]
            ):
                edited[visit] |= ASKS
                break
            at_row = visits[visit, ROW]
            if at_row < 0:
                continue
            if end + many > len(ban) or size > width or (size and now >= len(asked)):
                counts[LACKS] = 1
                break
            for which in range(many):
                ban[end] = at_row * stride + numbers[bans + which]
                end += 1
            if many:
                edited[visit] |= EDITED
            if size:
                for which in range(width):
                    questions[now, which] = numbers[ids + (which if which < size else 0)]
                questions[now, width] = numbers[block + _TOKEN]
                questions[now, width + 1] = numbers[block + _COUNT]
                questions[now, width + 2] = 0
                asked[now] = at_row
                now += 1
                edited[visit] |= DECIDED
    counts[BAN], counts[ASK] = end, now


class HeldForm(Form):
    """Rows whose edits stay the same for a while."""

    edits = EditKind.ASKS
    comes_and_goes = True

    @abstractmethod
    def held(self, request: Request) -> Held | None:
        """Return the edits of the next positions; ``None`` if the next step may need other edits.

        Args:
            request: The request as the processor sees it, with all tokens so far. The first step
                that has these edits comes after its next token.
        """

    def asks(self, params: Any) -> int:
        return self.most(params)

    def forced(self, request: Request) -> int | None:
        held = self.held(request)
        return None if held is None or held.question is None else held.question.forced

    def block(self, request: Request, limit: int) -> ArenaBlock | None:  # noqa: ARG002 - nothing grows
        held = self.held(request)
        if held is None or held.until < request.position + FEWEST_STEPS:
            return None
        telling = held.telling
        bits = self.arena.share(telling, lambda: bits_of(telling))
        given, most, forced = held.question or HeldQuestion((), 0, 0)
        banned, ids = (*held.banned,), (*given,)
        bans = self.arena.share(banned, lambda: banned)
        asked = self.arena.share(ids, lambda: ids)
        block = self.arena.take(_HEAD, (bits, bans, asked))
        self.arena.of(block)[:] = (
            *(min(held.until, _LAST), bits.at, bits.size, bans.at, len(banned)),
            *(asked.at, len(ids), most, forced),
        )
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        _step(
            self.arena.numbers,
            group.blocks,
            group.at,
            group.before,
            visits.first,
            visits.numbers,
            visits.stride,
            out.ban,
            out.asked,
            out.questions,
            out.counts,
            out.edited,
        )
