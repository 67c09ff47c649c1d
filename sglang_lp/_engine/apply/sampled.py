"""Which rows SGLang can sample from: the bound that keeps a division by the temperature finite.

After all edits SGLang divides a row by its temperature and takes the softmax. A row with NaN or
``+inf``, or without a finite logit, has the softmax NaN, which also lifts bans: whatever samples
from it may take a banned token. A row whose largest quotient is finite is safe: the softmax gives
that token a probability of at least 1 / vocabulary and every banned token exactly 0, and top-k,
top-p and min-p never drop the most likely token.

A row is looked at only if it may fail, because the host waits for the device to look. With

- finite logits of the model of at most 1e27 (a model's are below 1e5; float16 ends at 65,504),
- a ``logit_bias`` of at most 1e27 (``LARGEST``),
- penalties for presence and frequency, and biases of processors, below 1e10 in all,
- processors that multiply by at most ``MAX_FACTOR`` = 1e3,
- a repetition penalty and a temperature that, where below 1, have a product of at least 1e-8
  (``SMALLEST``),

the largest quotient is below (1e27 + 1e27 + 1e10) * 1e3 / 1e-8 < 3e38, and float32 ends at 3.4e38.
A temperature that float32 holds as a normal number divides ``-inf`` to ``-inf``.
"""

from __future__ import annotations

import math

#: Largest logit of a model, and largest ``logit_bias``, for which a row is finite without a look.
LARGEST = 1e27
#: Smallest product of a repetition penalty and a temperature, each at most 1, of such a row.
SMALLEST = 1e-8
#: Normal numbers of float32.
_FLOAT32 = 1.1754943508222875e-38, 3.4028234663852886e38


def can_sample(highest: float, temperature: float) -> bool:
    """Tell whether the softmax of a row, divided by its temperature, has no NaN.

    Args:
        highest: The largest logit of the row; NaN if there is one.
        temperature: SGLang's, as the request has it.
    """
    least, most = _FLOAT32
    return (
        math.isfinite(highest)
        and least <= temperature <= most
        and abs(highest) / temperature <= most
    )
