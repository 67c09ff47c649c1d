"""Built-ins that force the same tokens and do not foresee them, to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sglang_lp.builtins import ForcedSequenceLogitProcessor, ThinkingBudgetLogitProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sglang_lp.request import Request

__all__ = ["POLICY", "Budget", "Sequence"]

#: Allows them.
POLICY = Path(__file__).with_name("unforeseen.toml")


class Sequence(ForcedSequenceLogitProcessor):
    """A forced sequence."""

    def foresee(self, request: Request) -> Iterator[int]:
        """Name nothing."""
        return iter(())


class Budget(ThinkingBudgetLogitProcessor):
    """A thinking budget with its closing."""

    def foresee(self, request: Request) -> Iterator[int]:
        """Name nothing."""
        return iter(())
