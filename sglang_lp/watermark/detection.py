"""The outcome of a test for a watermark, and the tails of its distributions."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Detection", "binomial_tail", "normal_tail"]


class Detection(NamedTuple):
    """The outcome of a test for a watermark.

    Attributes:
        scheme: Name of the scheme.
        scored: Number of tokens that count: with a whole context, and each context with the same
            token once.
        score: Share of green tokens, or weighted mean of the g-values.
        expected: Mean of the score without a watermark.
        z: Standard deviations between the two.
        p_value: Probability of this score or a larger one in text that was written without the
            key. 1 if no token counts.
    """

    scheme: str
    scored: int
    score: float
    expected: float
    z: float
    p_value: float


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """Return the probability of at least so many successes, exactly but for rounding.

    Args:
        successes: From 0 to ``trials``.
        trials: Number of independent trials.
        probability: Of a success, between 0 and 1.
    """
    if successes <= 0:
        return 1.0
    yes, no, whole = math.log(probability), math.log1p(-probability), math.lgamma(trials + 1)
    terms = (
        math.exp(
            whole
            - math.lgamma(count + 1)
            - math.lgamma(trials - count + 1)
            + count * yes
            + (trials - count) * no
        )
        for count in range(successes, trials + 1)
    )
    return min(1.0, math.fsum(terms))


def normal_tail(z: float) -> float:
    """Return the probability of at least ``z`` under the standard normal distribution."""
    return 0.5 * math.erfc(z / math.sqrt(2))
