"""The best continuations of beams that edits restrict to few tokens.

SGLang ranks the whole vocabulary for each beam. Where processors leave a beam some hundred tokens,
such as those of a catalogue, this module ranks only these, and no logit has to be masked.
``make bench PART=catalogue`` shows the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sglang_lp._engine.apply.device import index_on, send
from sglang_lp._engine.compiled.edits import WIDE
from sglang_lp.edits.ids import tensor_of

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.step import Step

#: Most tokens left to a beam, as a fraction of the vocabulary.
_MOST = 0.25


class Candidates(NamedTuple):
    """The best continuations of each beam, as SGLang's selection takes them.

    Attributes:
        logprobs: The logprob of each, descending; ``-inf`` where a beam has fewer continuations.
            Shape ``(beams, count)``, float32.
        token_ids: Their tokens, shape ``(beams, count)``, int64. Where the logprob is ``-inf``, the
            token has no meaning.
    """

    logprobs: torch.Tensor
    token_ids: torch.Tensor


def left_tokens(step: Step, places: Sequence[int]) -> torch.Tensor | None:
    """Return the tokens that a step leaves to each beam of a search, on the host.

    Args:
        step: A step whose processors have declared their edits.
        places: The rows of its logits that are beams of the search. A row of ``None`` is a dead
            beam, which continues with no token.

    Returns:
        Shape ``(beams, most)``, int64, ascending in each row, then -1. ``None`` where SGLang has to
        rank masked logits instead:

        - a beam keeps more than ``_MOST`` of the vocabulary, or no beam keeps a token;
        - a processor does more to a beam than allow only some tokens;
        - the beams share one wide list, which a single mask applies to all of them.
    """
    import numpy as np
    import torch

    allowed = [step.only_allowed(place) for place in places]
    if None in allowed:
        return None
    lengths = np.array([len(ids or ()) for ids in allowed])
    most = int(lengths.max())
    if not 0 < most <= _MOST * step.vocab_size:
        return None
    if most >= WIDE and 2 * len({*map(id, allowed)}) <= len(allowed):
        return None
    found = np.full((len(allowed), most), -1, dtype=np.int64)
    there = np.arange(most) < lengths[:, None]
    found[there] = np.concatenate([tensor_of(ids or ()).numpy() for ids in allowed])
    if not (found[:, 1:] > found[:, :-1])[there[:, 1:]].all():
        return None  # some token may be named twice
    return torch.from_numpy(found)


def rank(
    logits: torch.Tensor,
    places: Sequence[int],
    token_ids: torch.Tensor,
    totals: torch.Tensor | None,
    count: int,
) -> Candidates:
    """Rank some tokens of each beam, without a wait for the device.

    Args:
        logits: Shape ``(rows, vocab)``, not masked; not changed.
        places: The rows that are beams.
        token_ids: From :func:`left_tokens`.
        totals: Logarithm of the sum of the exponentials of each beam's row, shape ``(beams, 1)``;
            ``None`` to sum over the ranked tokens only.
        count: Number of candidates of each beam.
    """
    from torch.nn.functional import pad

    rows = index_on(logits.device, places)[:, None]
    token_ids = send(token_ids, logits.device)
    missing = token_ids < 0
    token_ids = token_ids.masked_fill(missing, 0)
    left = logits[rows, token_ids].float().masked_fill(missing, -math.inf)
    if totals is None:
        totals = left.logsumexp(-1, keepdim=True)
    # A dead beam has no total.
    logprobs = (left - totals).masked_fill(missing, -math.inf)
    most = token_ids.shape[1]
    best, at = logprobs.topk(min(count, most), dim=-1)
    chosen = token_ids.gather(1, at)
    if most < count:
        best = pad(best, (0, count - most), value=-math.inf)
        chosen = pad(chosen, (0, count - most))
    return Candidates(best, chosen)
