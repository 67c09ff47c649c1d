"""Processors in a verify step of speculative decoding: edits at every node of the draft trees.

SGLang verifies the drafts of EAGLE, EAGLE3, NEXTN, STANDALONE and NGRAM in one function. It
applies penalties, logit bias and the grammar's mask to the logits of every drafted token, and then
accepts or samples. Processors come after the mask. So a stand-in replaces the mask: it applies the
real mask, and then the processors. The drafted tokens are on the device. Their copy to the host
starts before the verify forward; a later copy would wait for that forward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.device import Copy
from sglang_lp._engine.history.attached import rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.errors import SglangLpError
from sglang_lp.server.scheduler.endings import end_request

if TYPE_CHECKING:
    import torch

    from sglang_lp.server.scheduler.sampling import Steps

logger = logging.getLogger(__name__)

_ELSEWHERE = "this SGLang applies grammars to drafted tokens where sglang-lp does not see it"

#: Attribute of SGLang's verify input, which the forward and the sampling both get.
_TREES = "sglang_lp_trees"


def _trees(verify_input: Any) -> Copy:
    """Start the copy of the draft trees of one verify step, shape ``(3, requests, nodes)``."""
    import torch

    links = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    width = verify_input.draft_token_num
    parts = [verify_input.draft_token, *links]
    return Copy(torch.stack([part.view(-1, width).to(torch.int64) for part in parts]))


class _AfterGrammar:
    """Stands in for the grammar mask of a verify step: applies it, and then the processors."""

    def __init__(self, mask: Any, edit: Callable[[torch.Tensor], None]) -> None:
        self._mask = mask
        self._edit = edit

    def apply(self, logits: torch.Tensor) -> None:
        """Edit logits, shape ``(requests * nodes, vocab)``, in place."""
        if self._mask is not None:
            self._mask.apply(logits)
        self._edit(logits)


class TreeSteps:
    """The verify steps of one scheduler process that verify trees. Its public methods are hooks.

    Args:
        steps: Runs the processors.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def capture(
        self,
        _worker: Any,
        batch: Any = None,
        forward_batch: Any = None,
        pp_proxy_tensors: Any = None,  # noqa: ARG002 - SGLang's signature
        is_verify: bool = False,  # noqa: FBT001, FBT002 - as above
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Skip the verify step, or start the copy of its draft trees before its forward."""
        if not is_verify:
            return
        subject = forward_batch if batch is None else batch
        verify_input = subject.spec_info
        if not hasattr(verify_input, "retrieve_next_token") or not has_processors(subject):
            return  # of chains see sglang_lp.server.scheduler.chains
        width: int = verify_input.draft_token_num
        if self._steps.skip(subject.sampling_info, width):
            return
        self._steps.verified = subject.sampling_info
        try:
            if self._steps.may_act(subject.sampling_info, width):
                setattr(verify_input, _TREES, _trees(verify_input))
        except Exception:
            logger.exception("sglang-lp: a step reads its drafts later than it should")

    def verify(
        self,
        verify_input: Any,
        batch: Any,
        logits_output: Any,
        grammar_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Replace the grammar mask of a verify step, before the step samples."""
        if not has_processors(batch):
            return None
        if grammar_mask is None and batch.has_grammar:
            _end_with_grammar(batch)

        def read() -> Drafts:
            trees = getattr(verify_input, _TREES, None) or _trees(verify_input)
            return Drafts(verify_input.draft_token_num, *trees.read())

        def apply(logits: torch.Tensor) -> None:
            masked = [req.grammar is not None for req in batch.reqs] if batch.has_grammar else ()
            width = verify_input.draft_token_num
            self._steps.run_drafts(logits, batch.sampling_info, width, masked, read)

        mask = _AfterGrammar(grammar_mask, apply)
        return (verify_input, batch, logits_output, mask, *args), kwargs


def _end_with_grammar(batch: Any) -> None:
    """End the requests of a step that have a grammar and a processor.

    SGLang builds a mask for every grammar. Without a mask the grammar may act after processors, and
    leave none of the tokens that they allow.
    """
    rows = rows_of(batch.sampling_info.custom_params)
    for req, row in zip(batch.reqs, rows, strict=True):
        if row is not None and req.grammar is not None:
            end_request(req, SglangLpError(_ELSEWHERE))


def has_processors(batch: Any) -> bool:
    """Tell whether a request of a ``ScheduleBatch`` or ``ForwardBatch`` has a processor.

    A batch that SGLang made to capture a graph may lack attributes, and has no processors.
    """
    info = getattr(batch, "sampling_info", None)
    has = getattr(info, "has_custom_logit_processor", False)
    return has and not batch.forward_mode.is_idle()
