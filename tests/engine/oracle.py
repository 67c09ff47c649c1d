"""What must come out, worked out from the true tokens after the fact, the slow and obvious way.

The model is run by Transformers over prompt and answer at once. Before each token of the answer
the rule of the processor is asked, with the true history, what it does there; then the token must
be the forced one, or the best of those that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import recording

#: From prompt and history to the token that is forced, the set that is banned, or ``None``.
Rule = Callable[[Sequence[int], Sequence[int]], "int | set[int] | None"]

#: How far two programs may be apart on one logit. The logits of the model span about 20.
TOLERANCE = 1e-3


def rule(name: str, params: Mapping[str, Any]) -> Rule:
    """Return what a processor does by its documentation."""
    return lambda prompt, history: _RULES[name](params, list(prompt), list(history))


def free(_prompt: Sequence[int], _history: Sequence[int]) -> None:
    """Do nothing, as a request without a processor."""


def _disallowed(params: Mapping[str, Any], _prompt: list[int], _history: list[int]) -> set[int]:
    return set(params["token_ids"])


def _forced(params: Mapping[str, Any], _prompt: list[int], history: list[int]) -> int | None:
    rest: list[int] = params["token_ids"][len(history) :]
    end: int | None = params.get("eos_token_id")
    return rest[0] if rest else end


def _thinking(params: Mapping[str, Any], prompt: list[int], history: list[int]) -> int | None:
    start, end, newline = (
        params[f"{name}_token_id"] for name in ("thinking_start", "thinking_end", "new_line")
    )
    opened = None
    for at, token in enumerate(prompt + history):
        if token == start:
            opened = at + 1
        elif token == end:
            opened = None
    if opened is None or len(prompt + history) - opened < params["thinking_budget"]:
        return None
    return int(end if history and history[-1] == newline else newline)


def _ngram(params: Mapping[str, Any], prompt: list[int], history: list[int]) -> set[int]:
    size = params["ngram_size"]
    tokens = prompt + history
    window = tokens[-params["window_size"] :]
    prefix = tokens[len(tokens) - size + 1 :]
    banned = {
        window[at + size - 1]
        for at in range(len(window) - size + 1)
        if window[at : at + size - 1] == prefix
    }
    return banned - set(params.get("whitelist_token_ids", ()))


def _recorder(params: Mapping[str, Any], _prompt: list[int], history: list[int]) -> int | None:
    return recording.steer(history) if params.get("steering") else None


_RULES: Mapping[str, Callable[[Mapping[str, Any], list[int], list[int]], Any]] = {
    "DisallowedTokensLogitsProcessor": _disallowed,
    "ForcedSequenceLogitProcessor": _forced,
    "ThinkingBudgetLogitProcessor": _thinking,
    "DeepseekOCRNoRepeatNGramLogitProcessor": _ngram,
    "Recorder": _recorder,
}


class Oracle:
    """Checks greedy answers of the model in a directory."""

    def __init__(self, model: Path) -> None:
        from transformers import GPT2LMHeadModel

        self._model = GPT2LMHeadModel.from_pretrained(model).eval()

    def check(self, prompt: Sequence[int], answer: Sequence[int], rule: Rule = free) -> None:
        """Fail unless every token of the answer is the right one.

        Args:
            prompt: Token ids.
            answer: The generated token ids.
            rule: What was to be done to them.
        """
        import torch

        assert answer, "no token came back"
        with torch.no_grad():
            logits = self._model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 :]
        for position, token in enumerate(answer):
            history = answer[:position]
            done = rule(prompt, history)
            where = f"at token {position} after {history[-5:]}"
            if isinstance(done, int):
                assert token == done, f"{where}: {token}, expected {done} to be forced"
                continue
            row = logits[position]
            if done:
                assert token not in done, f"{where}: {token} is banned"
                row[sorted(done)] = float("-inf")
            assert row[token] >= row.max() - TOLERANCE, (
                f"{where}: {token}, expected {int(row.argmax())} by a greedy choice"
            )
