"""Sampling fields that mask or spoil the rows of their request, known at admission."""

from __future__ import annotations

from typing import Any

from sglang_lp._engine.apply.sampled import LARGEST, SMALLEST

#: More end tokens than SGLang adds to ``stop_token_ids`` for any model.
_ENDS = 1024
#: Largest penalty for the frequency or presence of a token that SGLang takes.
_PENALTY = 2.0


def may_mask(sampling: Any) -> bool:
    """Tell whether SGLang may set some logits of a request to ``-inf``: end tokens.

    Args:
        sampling: SGLang's ``SamplingParams``, or ``None``.
    """
    return bool(getattr(sampling, "min_new_tokens", 0))


def may_spoil(sampling: Any, vocab_size: int | None) -> bool:
    """Tell whether these fields alone may leave a row from which nothing can be sampled.

    SGLang applies most of them before processors, and the temperature after them.
    :mod:`sglang_lp._engine.apply.sampled` proves that no other values can.

    Args:
        sampling: SGLang's ``SamplingParams``, or ``None``.
        vocab_size: Number of logits in a row; ``None`` if unknown.
    """
    repetition = getattr(sampling, "repetition_penalty", 1.0)
    temperature = getattr(sampling, "temperature", 1.0)
    if not (
        _is_within(repetition, LARGEST)
        and _is_within(temperature, LARGEST)
        and repetition > 0
        and temperature > 0
        and min(repetition, 1.0) * min(temperature, 1.0) >= SMALLEST
        and _is_within(getattr(sampling, "frequency_penalty", 0.0), _PENALTY)
        and _is_within(getattr(sampling, "presence_penalty", 0.0), _PENALTY)
    ):
        return True
    biases = getattr(sampling, "logit_bias", None)
    if biases and not all(_is_within(bias, LARGEST) for bias in biases.values()):
        return True
    ends = len(getattr(sampling, "stop_token_ids", None) or ())
    return may_mask(sampling) and ends > 0 and ends + _ENDS >= (vocab_size or 0)


def _is_within(value: object, most: float) -> bool:
    return isinstance(value, int | float) and abs(value) <= most
