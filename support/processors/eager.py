"""Built-ins with settings under which they act early and often on the tiny model."""

from __future__ import annotations

from sglang_lp import builtins
from support.models.tiny_model import EOS, FREQUENT

START, END, NEWLINE = FREQUENT[:3]
THINKING = {
    "thinking_start_token_id": START,
    "thinking_end_token_id": END,
    "new_line_token_id": NEWLINE,
}
CHAIN = (
    builtins.ChainLogitProcessor,
    {
        "chain": ["DisallowedTokensLogitsProcessor", "ThinkingBudgetLogitProcessor"],
        "0.token_ids": [*FREQUENT[3:]],
        "1.thinking_budget": 4,
        **{f"1.{key}": value for key, value in THINKING.items()},
    },
)
CHOICE = (
    builtins.ChoiceLogitProcessor,
    {"token_ids": [300, 301, 300, 302, 303], "lengths": [2, 3], "eos_token_ids": [EOS]},
)
