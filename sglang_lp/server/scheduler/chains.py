"""Processors in the verify steps of DFLASH and DSPARK, which verify chains of drafted tokens.

Both make the same input for the verify forward; the copy of its tokens to the host starts there.
Both call processors before penalties and the grammar, without the drafted tokens: that call is left
out. Processors act where each accepts, when all else has been done to the logits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.apply.device import Copy
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.server.scheduler.foresight import Known, foresee
from sglang_lp.server.scheduler.speculation import has_processors

if TYPE_CHECKING:
    import torch

    from sglang_lp.server.scheduler.sampling import Steps

__all__ = ["ChainSteps"]

logger = logging.getLogger(__name__)


class ChainSteps:
    """The verify steps of one scheduler process that verify chains.

    Args:
        steps: Runs the processors.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._step: _Step | None = None

    def begin(self, verify_input: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
        """Start the copy of what is verified, before the forward pass does."""
        self._step = None
        if not has_processors(batch):
            return
        self._steps.verified = batch.sampling_info
        layout = verify_input.ragged_verify_layout
        copy = known = None
        if batch.spec_algorithm.is_dflash():
            chains = verify_input.draft_token.view(-1, verify_input.draft_token_num)
            known = foresee(batch, chains.shape[1] - 1)
            if known is not None:
                known.put(chains[:, 1:])
        try:
            if self._steps.may_act(batch.sampling_info, verify_input.draft_token_num):
                copy = _copied(verify_input.draft_token, layout)
        except Exception:
            logger.exception("sglang-lp: a step reads its drafts later than it should")
        masked = [req.grammar is not None for req in batch.reqs] if batch.has_grammar else ()
        self._step = _Step(copy, layout is not None, masked, known)

    def accept_block(
        self,
        worker: Any,
        *,
        candidates: Any,
        next_token_logits: Any,
        sampling_info: Any,
        **_kwargs: Any,
    ) -> None:
        """Edit the logits that DFLASH accepts by."""
        known = self._step and self._step.known
        # What a selector's or LiLiCorr's drafts were drawn from, if these were.
        if known is not None and worker._selector_sample is not None:  # noqa: SLF001
            worker._selector_sample = known.make_drawn(*worker._selector_sample)  # noqa: SLF001
        self._edit(candidates, next_token_logits, sampling_info)

    def accept_and_finalize(
        self,
        _executor: Any,
        *,
        verify_ids_2d: Any,
        target_logits: Any,
        sampling_info: Any,
        **_kwargs: Any,
    ) -> None:
        """Edit the logits that DSPARK accepts by."""
        self._edit(verify_ids_2d, target_logits, sampling_info)

    def _edit(self, token_ids: torch.Tensor, logits: torch.Tensor, info: Any) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        width: int = token_ids.shape[1]
        self._steps.run_drafts(
            logits, info, width, step.masked, lambda: step.drafts(width, token_ids)
        )


class _Step(NamedTuple):
    """A verify step that has begun.

    Attributes:
        copy: What is verified, on its way to the host; ``None`` if nobody needs it.
        ragged: Whether requests verify chains of different lengths.
        masked: For each request whether a grammar masks its rows; empty if none does.
        known: What was written over DFLASH's drafts, if anything was.
    """

    copy: Copy | None
    ragged: bool
    masked: Sequence[bool]
    known: Known | None

    def drafts(self, width: int, token_ids: torch.Tensor) -> Drafts:
        """Wait for the copy, and return the chains.

        Args:
            width: Nodes of each whole chain.
            token_ids: The whole chains, shape ``(requests, width)``.
        """
        numbers = (self.copy or Copy(token_ids.flatten())).read()
        lengths = [width] * len(token_ids)
        if self.copy is not None and self.ragged:
            lengths = numbers[-len(lengths) :]
        ends = accumulate(lengths)
        chains = [numbers[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        # Node j of a chain has node j + 1 below it, as far as it is verified.
        child = [[*range(1, len(chain)), *[-1] * (width - len(chain) + 1)] for chain in chains]
        return Drafts(width, chains, child, [[-1] * width] * len(chains))


def _copied(token_ids: torch.Tensor, layout: Any) -> Copy:
    """Start the copy of chains that lie one behind the other; of ragged ones also their lengths."""
    import torch

    if layout is None:
        return Copy(token_ids)
    return Copy(torch.cat((token_ids, layout.verify_lens.to(token_ids.dtype))))
