"""What the processors should leave of the logits, said as plainly as possible: slow, and in loops.

Every fast path is compared with this, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.cases import NEWLINE, THINK

__all__ = ["edit"]

END_THINK = 151_668


def edit(processor: str, logits: torch.Tensor, custom_params: Sequence[Mapping[str, Any]]) -> None:
    """Edit logits of shape ``(rows, vocab)`` in place, as the named processor should."""
    for row, params in zip(logits, custom_params, strict=True):
        request = params["__req__"]
        tokens = [*request.origin_input_ids, *request.output_ids]
        match processor:
            case "Qwen3ThinkingBudgetLogitProcessor":
                _think(row, params, tokens, [*request.output_ids])
            case "DeepseekOCRNoRepeatNGramLogitProcessor":
                _repeat_nothing(row, params, tokens)
            case "DisallowedTokensLogitsProcessor":
                row[list(params["token_ids"])] = -torch.inf


def _think(
    row: torch.Tensor, params: Mapping[str, Any], tokens: list[int], output: list[int]
) -> None:
    opened = [i for i, token in enumerate(tokens) if token == THINK]
    ended = [i for i, token in enumerate(tokens) if token == END_THINK]
    if not opened or (ended and ended[-1] > opened[-1]):
        return
    if len(tokens) - opened[-1] - 1 >= params["thinking_budget"]:
        row[:] = -torch.inf
        row[END_THINK if output and output[-1] == NEWLINE else NEWLINE] = 0.0


def _repeat_nothing(row: torch.Tensor, params: Mapping[str, Any], tokens: list[int]) -> None:
    size = params["ngram_size"]
    window = tokens[-params["window_size"] :]
    prefix = tokens[len(tokens) - size + 1 :]
    if len(prefix) < size - 1:
        return
    for start in range(len(window) - size + 1):
        ngram = window[start : start + size]
        if ngram[:-1] == prefix and ngram[-1] not in params["whitelist_token_ids"]:
            row[ngram[-1]] = -torch.inf
