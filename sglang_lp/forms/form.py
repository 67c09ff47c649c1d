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

__all__ = ["FEWEST_STEPS", "EditKind", "Form", "Group", "Seen"]

#: Fewest steps for which a row joins a form, as far as it is known: joining takes as long as some
#: steps of a row that is asked by itself.
FEWEST_STEPS = 8


class Seen(NamedTuple):
    """A step as forms see it: arrays with an entry for each of their rows.

    Attributes:
        tokens: The token that the request got since the last step, int64.
        positions: Number of generated tokens before the token that is sampled now, int64.
        rows: Row of the logits, int64.
        stride: Distance between rows in the flat logits.
        vocab_size: Number of logits in a row.
    """

    tokens: Any
    positions: Any
    rows: Any
    stride: int
    vocab_size: int


class Group(NamedTuple):
    """The rows of one form in a batch.

    Attributes:
        at: Their places in the arrays of :class:`Seen`, int64.
        blocks: Offsets of their blocks, int64.
        before: How many generated tokens the processor of each does not see, int64.
    """

    at: Any
    blocks: Any
    before: Any

    def positions(self, seen: Seen) -> Any:
        """Return for each row the number of generated tokens that its processor sees."""
        return seen.positions[self.at] - self.before


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
        edits: What its edits do.
        reads_tokens: Whether it reads tokens, and not only positions.
        naps: Whether a turn that sleeps for some tokens runs by the form as well, because it would
            have to read them all when it wakes.
        comes_and_goes: Whether a row that does not fit now may fit at a later step.
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
        """Return the most tokens that a step edits in a row."""

    def asks(self, params: Any) -> int:  # noqa: ARG002 - most forms do not ask
        """Return the most tokens of which a row asks whether one is among the likeliest."""
        return 0

    @abstractmethod
    def block(self, request: Request, limit: int) -> ArenaBlock | None:
        """Return the block of a row, from what its processor knows now.

        Args:
            request: The request as the processor sees it, with all tokens so far.
            limit: The most tokens that the history can have, prompt and resumed ones among them.

        Returns:
            The block; ``None`` if the row does not fit now.
        """

    @abstractmethod
    def step(self, group: Group, seen: Seen, out: Out) -> None:
        """Feed each row its new token and append its edits: one compiled call.

        Args:
            group: The rows.
            seen: The step.
            out: Gets the edits.
        """
