"""Built-ins that force the same tokens, and do not say before which."""

from __future__ import annotations

from sglang_lp.builtins import ForcedSequenceLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.processor import LogitProcessor

__all__ = ["Budget", "Sequence"]


class Sequence(ForcedSequenceLogitProcessor):
    """A forced sequence."""

    foresee = LogitProcessor.foresee


class Budget(ThinkingBudgetLogitProcessor):
    """A thinking budget with its closing."""

    foresee = LogitProcessor.foresee
