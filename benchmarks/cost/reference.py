"""The logits that processors should leave, in plain loops.

Every fast path is compared with this, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.cost.cases import NEWLINE, THINK
from support.oracles.definitions import ngram_bans, thinking_force

__all__ = ["edit"]

END_THINK = 151_668


def edit(processor: str, logits: torch.Tensor, custom_params: Sequence[Mapping[str, Any]]) -> None:
    """Edit logits of shape ``(rows, vocab)`` in place, as the named processor should."""
    for row, params in zip(logits, custom_params, strict=True):
        request = params["__req__"]
        prompt, output = [*request.origin_input_ids], [*request.output_ids]
        match processor:
            case "Qwen3ThinkingBudgetLogitProcessor":
                budget, delimiters = params["thinking_budget"], (THINK, END_THINK, NEWLINE)
                forced = thinking_force(prompt, output, budget, delimiters)
                if forced is not None:
                    row[:] = -torch.inf
                    row[forced] = 0.0
            case "DeepseekOCRNoRepeatNGramLogitProcessor":
                size, window = params["ngram_size"], params["window_size"]
                allowed = params["whitelist_token_ids"]
                row[[*ngram_bans(prompt + output, size, window, allowed)]] = -torch.inf
            case "DisallowedTokensLogitsProcessor":
                row[[*params["token_ids"]]] = -torch.inf
