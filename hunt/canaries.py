"""Requests with processors of their own, whose answers do not depend on who else asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demo.corpus import prompt
from hunt.values import EOS, QUESTIONS

if TYPE_CHECKING:
    from hunt.servers import Kind

__all__ = ["canaries"]

_TOKENS = [300, 301, 302, 303]
_BUILT_IN: tuple[tuple[str | None, dict[str, Any] | None], ...] = (
    (None, None),
    ("ThinkingBudgetLogitProcessor", {"thinking_budget": 4}),
    ("BadWordsLogitProcessor", {"words": [" numbers", " is"]}),
    ("DeepseekOCRNoRepeatNGramLogitProcessor", {"ngram_size": 2, "window_size": 60}),
    ("TriggerPhraseLogitProcessor", {"trigger": "Two", "phrase": " sheep and a goat"}),
    ("ScheduledBiasLogitProcessor", {"token_ids": [310, 311], "bias": 30.0, "start": 9, "end": 14}),
)
_ADAPTED: dict[str, dict[str, Any]] = {
    "support.processors.devouring:Popped": {"token_ids": _TOKENS},
    "support.processors.devouring:Given": {},
    "support.processors.devouring:Taken": {"token_ids": _TOKENS},
    "support.processors.devouring:Entry": {"token_ids": _TOKENS},
    "support.processors.foreign:DynamoForced": {"token_ids": _TOKENS, "eos_token_id": EOS},
}


def canaries(kind: Kind) -> list[dict[str, Any]]:
    """Return bodies for ``/generate``, all of them greedy.

    Args:
        kind: Of the server; it allows the classes.
    """
    named = [*_BUILT_IN]
    if not kind.drafts:  # they refuse some of them
        named += [(name, params) for name, params in _ADAPTED.items() if name in kind.adapted]
    return [
        {
            "text": prompt(QUESTIONS[place % len(QUESTIONS)]),
            "sampling_params": {"temperature": 0, "max_new_tokens": 20, "custom_params": params},
            "custom_logit_processor": name,
        }
        for place, (name, params) in enumerate(named)
    ]
