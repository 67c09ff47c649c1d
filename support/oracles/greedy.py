"""Checks greedy answers of a server, token by token, the slow and obvious way.

Transformers runs the model over prompt and answer at once. At each token of the answer the
processor's rule edits the logits with the true history; the token must then be the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins import CatalogueLogitProcessor, WatermarkLogitProcessor
from sglang_lp.testing import FakeRequest
from support.catalogues import serving
from support.models import tiny_model
from support.models.tiny_model import VOCAB_SIZE, beginnings
from support.oracles.definitions import (
    bad_word_bans,
    ngram_bans,
    scheduled_bias,
    thinking_force,
    thought,
)
from support.processors.recording import steer
from support.watermarks import GreenMarks

if TYPE_CHECKING:
    import torch

#: From prompt, history and the row of logits, which it may change, to the row to choose from.
Rule = Callable[[list[int], list[int], "torch.Tensor"], "torch.Tensor"]

#: How far two programs may be apart on one logit. The logits of the model span about 20.
TOLERANCE = 1e-3


def rule(
    processor: Any,
    params: Mapping[str, Any],
    tokenizer: Any = None,
    *,
    forced: float | None = None,
    temperature: float = 0.0,
) -> Rule:
    """Return a processor's rule: by its documentation, or by a new instance at each token.

    Args:
        processor: Its class.
        params: Its parameters.
        tokenizer: The model's, if it is not the tiny one.
        forced: What a forced token gets; ``None`` to leave it.
        temperature: The request's; 0 for a greedy one.
    """
    if processor is CatalogueLogitProcessor:
        processor = serving()
    if processor is WatermarkLogitProcessor:
        processor = GreenMarks
    tokenizer = tokenizer or tiny_model.tokenizer()
    is_text = not {"words", "texts", "text"}.isdisjoint(params)
    sampling = SimpleNamespace(temperature=temperature or 1.0, top_k=-1 if temperature else 1)
    documented = None if is_text else _DOCUMENTED.get(processor.__name__)

    def apply(prompt: list[int], history: list[int], row: torch.Tensor) -> torch.Tensor:
        if documented is None:
            request: Any = FakeRequest(prompt, history, tokenizer=tokenizer)
            request.sampling_params = sampling
            edited: torch.Tensor = processor()(row[None], [{**params, "__req__": request}])[0]
            return edited
        done = documented(params, prompt, history)
        if isinstance(done, int):
            row[:done] = row[done + 1 :] = float("-inf")
            row[done] = row[done] if forced is None else forced
        elif isinstance(done, Mapping):
            for token_id, bias in done.items():
                row[token_id] += bias
        elif done:
            row[sorted(done)] = float("-inf")
        return row

    return apply


def free(_prompt: list[int], _history: list[int], row: torch.Tensor) -> torch.Tensor:
    """Do nothing, as a request without a processor."""
    return row


# The token that is forced, the set that is banned, biases by token, or None.


def _disallowed(params: Mapping[str, Any], _prompt: list[int], _history: list[int]) -> set[int]:
    return set(params["token_ids"])


def _allowed(params: Mapping[str, Any], _prompt: list[int], _history: list[int]) -> set[int]:
    return {*range(VOCAB_SIZE)} - {*params["token_ids"]}


def _bad_words(params: Mapping[str, Any], _prompt: list[int], history: list[int]) -> set[int]:
    ids = iter(params["token_ids"])
    return bad_word_bans([[*islice(ids, length)] for length in params["lengths"]], history)


def _min_length(params: Mapping[str, Any], _prompt: list[int], history: list[int]) -> set[int]:
    return {*params["eos_token_ids"]} if len(history) < params["min_tokens"] else set()


def _scheduled_bias(
    params: Mapping[str, Any], _prompt: list[int], history: list[int]
) -> Mapping[int, float]:
    schedule = params.get("bias"), params.get("final_bias"), params.get("start", 0)
    bias = scheduled_bias(len(history), *schedule, params.get("end"))
    return dict.fromkeys(params["token_ids"], bias)


def _forced(params: Mapping[str, Any], _prompt: list[int], history: list[int]) -> int | None:
    rest: list[int] = params["token_ids"][len(history) :]
    ends: list[int] = params.get("eos_token_ids", [])
    return next(iter([*rest, *ends]), None)


def _thinking(
    params: Mapping[str, Any], prompt: list[int], history: list[int]
) -> int | set[int] | None:
    delimiters = (
        params["thinking_start_token_id"],
        params["thinking_end_token_id"],
        params["new_line_token_id"],
    )
    budget = params["thinking_budget"]
    inside = thought(prompt, history, delimiters)
    if inside is None:
        return None
    if inside >= budget:
        return thinking_force(prompt, history, budget, delimiters)
    # A character that begins has to end within the budget.
    return {i for i, lacking in beginnings().items() if lacking >= budget - inside}


def _ngram(params: Mapping[str, Any], prompt: list[int], history: list[int]) -> set[int]:
    tokens = history if params.get("scope") == "output" else prompt + history
    allowed = params.get("whitelist_token_ids", ())
    return ngram_bans(tokens, params["ngram_size"], params["window_size"], allowed)


def _recorder(params: Mapping[str, Any], _prompt: list[int], history: list[int]) -> int | None:
    return steer(history) if params["steering"] else None


_DOCUMENTED: Mapping[str, Callable[[Mapping[str, Any], list[int], list[int]], Any]] = {
    "AllowedTokensLogitProcessor": _allowed,
    "BadWordsLogitProcessor": _bad_words,
    "MinLengthLogitProcessor": _min_length,
    "ScheduledBiasLogitProcessor": _scheduled_bias,
    "DisallowedTokensLogitsProcessor": _disallowed,
    "ForcedSequenceLogitProcessor": _forced,
    "ThinkingBudgetLogitProcessor": _thinking,
    "DeepseekOCRNoRepeatNGramLogitProcessor": _ngram,
    "Recorder": _recorder,
}


class Oracle:
    """Checks greedy answers of the model in a directory."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model)  # in evaluation mode

    def logits(self, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
        """Return the logits before each token of the answer, shape ``(tokens, vocab)``."""
        import torch

        with torch.no_grad():
            logits: torch.Tensor = self._model(torch.tensor([[*prompt, *answer]])).logits
        return logits[0, len(prompt) - 1 : -1]

    def check(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        rule: Rule = free,
        *,
        sampled: bool = False,
    ) -> None:
        """Fail unless every token of the answer is the right one.

        Args:
            prompt: Token ids.
            answer: The generated token ids.
            rule: What was to be done to them.
            sampled: Whether any token that the rule leaves is right, not only the best.
        """
        assert answer, "no token came back"
        for position, row in enumerate(self.logits(prompt, answer)):
            history, token = [*answer[:position]], answer[position]
            edited = rule([*prompt], history, row.clone())
            least = edited[edited > float("-inf")].min() if sampled else edited.max() - TOLERANCE
            assert edited[token] >= least, (
                f"token {position} after {history[-5:]}: {token}, "
                f"expected {int(edited.argmax())} (without a processor {int(row.argmax())})"
            )
