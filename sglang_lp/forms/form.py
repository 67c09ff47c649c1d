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

__all__ = ["EditKind", "Form", "Group", "Seen"]


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
    """

    at: Any
    blocks: Any


class EditKind(Enum):
    """Kinds of edits; a form has one of them."""

    BANS = "ban tokens"
    BIASES = "bias tokens"
    FORCES = "force a token"


class Form(ABC):
    """All rows of one kind in a batch. What a row knows is a block of an arena.

    Attributes:
        edits: What its edits do.
        reads_tokens: Whether it reads tokens, and not only positions.
        arena: The blocks, int32.
    """

    edits: ClassVar[EditKind]
    reads_tokens: ClassVar[bool] = True

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

    @abstractmethod
    def block(self, request: Request, limit: int) -> ArenaBlock | None:
        """Return the block of a row, from what its processor knows now.

        Args:
            request: The request as the processor sees it, with all tokens so far.
            limit: The most tokens that the history can have, prompt and resumed ones among them.

        Returns:
            The block; ``None`` if the row does not fit after all.
        """

    @abstractmethod
    def step(self, group: Group, seen: Seen, out: Out) -> None:
        """Feed each row its new token and append its edits: one compiled call.

        Args:
            group: The rows.
            seen: The step.
            out: Gets the edits.
        """
