"""The interface of a form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from sglang_lp.forms.arena import Arena, ArenaBlock

if TYPE_CHECKING:
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

__all__ = [
    "COLUMNS",
    "DEPTH",
    "FEWEST_STEPS",
    "MOST_NODES",
    "POSITION",
    "ROW",
    "SAVE",
    "TOKEN",
    "EditKind",
    "Form",
    "Group",
    "Visits",
]

#: Fewest steps for which a row joins a form, as far as it is known: joining takes as long as some
#: steps of a row that is asked by itself.
FEWEST_STEPS = 8


#: Columns of ``Visits.numbers``. TOKEN: the token; POSITION: number of generated tokens with it;
#: ROW: the row of the logits after it, -1 if none is edited; DEPTH: number of drafted tokens on the
#: path to it; SAVE: 1 if several drafted tokens follow it, or the draft begins there, so that what
#: a form knows after this token is needed again; otherwise 0.
TOKEN, POSITION, ROW, DEPTH, SAVE = range(5)
COLUMNS = 5
#: Most nodes of a draft.
MOST_NODES = 64


class Visits(NamedTuple):
    """A step as forms see it: the tokens to read, row by row.

    The tokens that a request got since the last step come first, and the last of these has a row of
    the logits. Then come drafted tokens, depth first, each with a row of the logits. What a row
    knows after drafted tokens is forgotten at the end of the step.

    Attributes:
        first: Shape ``(rows + 1,)``, int64: the first visit of each row, and the number of visits.
        numbers: Shape ``(visits, COLUMNS)``, int64.
        deepest: Most drafted tokens of a path.
        stride: Number of logits from a row to the next in the flat logits.
        vocab_size: Number of logits in a row.
    """

    first: Any
    numbers: Any
    deepest: int
    stride: int
    vocab_size: int


class Group(NamedTuple):
    """The rows of one form in a batch.

    Attributes:
        at: Their places in ``Visits.first``, int64.
        blocks: Offsets of their blocks in the arena of the form, int64.
        before: How many generated tokens the processor of each does not see, int64: subtracted from
            ``POSITION``, it gives the position that the processor knows.
    """

    at: Any
    blocks: Any
    before: Any


class EditKind(Enum):
    """Kinds of edits; a form has one of them."""

    BANS = "ban tokens"
    BIASES = "bias tokens"
    FORCES = "force a token"
    #: It bans tokens, or the device decides whether it forces one in their place.
    ASKS = "ask the device"


class Form(ABC):
    """All rows of one kind in a batch. What a row knows is a block of an arena.

    Attributes:
        edits: The kind of its edits.
        reads_tokens: Whether it reads tokens, and not only positions.
        naps: Whether a turn that sleeps for some tokens runs by the form as well, because it would
            have to read them all when it wakes.
        comes_and_goes: Whether a row that cannot have the form now may have it at a later step.
        arena: The blocks, int32.
    """

    edits: ClassVar[EditKind]
    reads_tokens: ClassVar[bool] = True
    naps: ClassVar[bool] = False
    comes_and_goes: ClassVar[bool] = False

    def __init__(self) -> None:
        self.arena = Arena(np.int32)

    @abstractmethod
    def fits(self, params: Any, vocab_size: int) -> bool:
        """Tell whether a row with these parameters can have the form.

        Args:
            params: Parsed and fitted parameters.
            vocab_size: Number of logits in a row.
        """

    @abstractmethod
    def most(self, params: Any) -> int:
        """Return the most tokens that a step edits in a row of the logits."""

    def asks(self, params: Any) -> int:  # noqa: ARG002 - most forms do not ask
        """Return the most tokens of a question, which asks whether one is among the likeliest."""
        return 0

    def forced(self, request: Request) -> int | None:  # noqa: ARG002 - most forms force none
        """Return the token that the device may force in a row, if there is one."""
        return None

    @abstractmethod
    def block(self, request: Request, limit: int) -> ArenaBlock | None:
        """Return the block of a row, from what its processor knows now.

        Args:
            request: The request as the processor sees it, with all tokens so far.
            limit: The most tokens that the history can have, prompt and resumed tokens included.

        Returns:
            The block; ``None`` if the row cannot have the form now.
        """

    @abstractmethod
    def step(self, group: Group, visits: Visits, out: Out) -> None:
        """Feed each row its tokens and append its edits: one compiled call.

        Args:
            group: The rows.
            visits: The step.
            out: Gets the edits. If it lacks room, the form sets ``counts[LACKS]`` and stops.
        """
