"""Built-ins that force the same tokens and do not foresee them, to compare with."""

from __future__ import annotations

from pathlib import Path

from sglang_lp.builtins import ForcedSequenceLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.processor import LogitProcessor

__all__ = ["POLICY", "Budget", "Sequence"]

#: Allows them.
POLICY = Path(__file__).with_name("unforeseen.toml")


class Sequence(ForcedSequenceLogitProcessor):
    """A forced sequence."""

    foresee = LogitProcessor.foresee


class Budget(ThinkingBudgetLogitProcessor):
    """A thinking budget with its closing."""

    foresee = LogitProcessor.foresee
