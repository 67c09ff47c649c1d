"""Processors in the verify steps of DFLASH and DSPARK, which verify chains of drafted tokens.

Both workers build the same input for the verify forward, and the copy of its tokens to the host
starts there. Processors edit the logits where each worker accepts drafts, after penalties and the
grammar. SGLang's own call of processors is skipped: it comes before both and lacks the drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.apply.device import Copy
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.server.scheduler.known_drafts import KnownDrafts, foresee, foresee_block
from sglang_lp.server.scheduler.speculation import has_processors

if TYPE_CHECKING:
    import torch

    from sglang_lp.server.scheduler.sampling import Steps

logger = logging.getLogger(__name__)


class ChainSteps:
    """Verify steps of one scheduler process, for chains of drafted tokens.

    Args:
        steps: Runs the processors.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._step: _VerifyStep | None = None

    def foresee_block(self, proposal: Any, _proposer: Any, *, batch: Any, **_given: Any) -> Any:
        """Skip DSPARK's step if no processor can act in it, or write known tokens into its block.

        DSPARK chooses a CUDA graph right after it proposes a block.
        """
        drafted: int = proposal.draft_block.draft_tokens.shape[1]
        if has_processors(batch) and self._steps.skip(batch.sampling_info, drafted + 1):
            return proposal
        return foresee_block(proposal, batch)

    def begin(self, verify_input: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
        """Skip the step, or start the copy of the drafted tokens before the forward pass starts."""
        self._step = None
        if not has_processors(batch):
            return
        width: int = verify_input.draft_token_num
        if self._steps.skip(batch.sampling_info, width):
            return
        self._steps.verified = batch.sampling_info
        layout = verify_input.ragged_verify_layout
        copy = known = None
        if batch.spec_algorithm.is_dflash():
            chains = verify_input.draft_token.view(-1, width)
            known = foresee(batch, chains.shape[1] - 1)
            if known is not None:
                known.put(chains[:, 1:])
        try:
            if self._steps.may_act(batch.sampling_info, width):
                copy = _copied(verify_input.draft_token, layout)
        except Exception:
            logger.exception("sglang-lp: a step reads its drafts later than it should")
        masked = [req.grammar is not None for req in batch.reqs] if batch.has_grammar else ()
        self._step = _VerifyStep(copy, layout is not None, masked, known)

    def accept_block(
        self,
        worker: Any,
        *,
        candidates: Any,
        next_token_logits: Any,
        sampling_info: Any,
        **_kwargs: Any,
    ) -> None:
        """Edit the logits from which DFLASH accepts drafts."""
        known = self._step and self._step.known
        # Candidates and probabilities of drafts that a selector or LiLiCorr sampled.
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
        """Edit the logits from which DSPARK accepts drafts."""
        self._edit(verify_ids_2d, target_logits, sampling_info)

    def _edit(self, token_ids: torch.Tensor, logits: torch.Tensor, info: Any) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        width: int = token_ids.shape[1]
        self._steps.run_drafts(
            logits, info, width, step.masked, lambda: step.drafts(width, token_ids)
        )


class _VerifyStep(NamedTuple):
    """A verify step that has begun.

    Attributes:
        copy: Running copy of the drafted tokens to the host; ``None`` if no processor reads it.
        ragged: Whether requests verify chains of different lengths.
        masked: Whether a grammar masks the rows of each request; empty without any grammar.
        known: Known tokens that replaced DFLASH's drafts, if there are any.
    """

    copy: Copy | None
    ragged: bool
    masked: Sequence[bool]
    known: KnownDrafts | None

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
        # Node j of a chain has the child j + 1, up to the end of the verified part.
        child = [[*range(1, len(chain)), *[-1] * (width - len(chain) + 1)] for chain in chains]
        chains = [[*chain, *[-1] * (width - len(chain))] for chain in chains]
        return Drafts(width, chains, child, [[-1] * width] * len(chains))


def _copied(token_ids: torch.Tensor, layout: Any) -> Copy:
    """Start the copy of concatenated chains, followed by their lengths if they are ragged."""
    import torch

    if layout is None:
        return Copy(token_ids)
    return Copy(torch.cat((token_ids, layout.verify_lens.to(token_ids.dtype))))
