"""SGLang's own class with the delimiters of this model, as far as it takes them.

Each of its delimiters is one token. ``<think>`` and ``</think>`` have three here, of which it is
given the first.
"""

from __future__ import annotations

from sglang.srt.sampling.custom_logit_processor import ThinkingBudgetLogitProcessor

__all__ = ["FirstTokenBudget"]


class FirstTokenBudget(ThinkingBudgetLogitProcessor):  # type: ignore[misc]
    """``<``, ``</`` and a line break."""

    THINKING_START_TOKEN_ID = 44
    THINKING_END_TOKEN_ID = 9617
    NEW_LINE_TOKEN_ID = 198
