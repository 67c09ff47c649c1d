"""Processors in a verify step of speculative decoding: edits at every node of the draft trees.

SGLang verifies the drafts of EAGLE, EAGLE3, NEXTN, STANDALONE and NGRAM in one function. It
applies penalties, logit bias and the grammar's mask to the logits of every drafted token, and then
accepts or samples. Processors belong after the mask, so the mask is replaced by one that applies
the real one and then them. The drafted tokens are on the device. Their copy to the host starts
before the verify forward does; a later one would wait for that forward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.drafts import Drafts

if TYPE_CHECKING:
    import torch

__all__ = ["make_capture", "make_verify"]

logger = logging.getLogger(__name__)

#: Attribute of SGLang's verify input, which the forward and the sampling both get.
_TREES = "sglang_lp_trees"


class _Trees:
    """The draft trees of one verify step, on their way to the host.

    Args:
        verify_input: SGLang's ``EagleVerifyInput`` or ``NgramVerifyInput``.
    """

    def __init__(self, verify_input: Any) -> None:
        import torch

        self.width: int = verify_input.draft_token_num
        links = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
        parts = [verify_input.draft_token, *links]
        # One copy: shape (3, requests, nodes).
        trees = torch.stack([part.view(-1, self.width).to(torch.int64) for part in parts])
        self._done: Any = None
        if trees.is_cpu:
            self._host = trees
            return
        self._host = torch.empty(trees.shape, dtype=trees.dtype, pin_memory=True)
        self._host.copy_(trees, non_blocking=True)
        self._done = torch.get_device_module(trees.device).Event()
        self._done.record()

    def read(self) -> Drafts:
        """Wait for the copy, and return the trees."""
        if self._done is not None:
            self._done.synchronize()
        return Drafts(self.width, *self._host.tolist())


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


def make_capture(may_act: Callable[[Any, int], bool]) -> Any:
    """Return the hook before a forward pass.

    Args:
        may_act: Tells from a ``SamplingBatchInfo`` and the number of nodes whether any processor
            may act within the step.
    """

    def capture(
        _worker: Any,
        batch: Any = None,
        forward_batch: Any = None,
        _pp_proxy_tensors: Any = None,
        is_verify: bool = False,  # noqa: FBT001, FBT002 - SGLang's signature
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        if not is_verify:
            return
        subject = forward_batch if batch is None else batch
        verify_input = subject.spec_info
        try:
            if _has_processors(subject) and may_act(
                subject.sampling_info, verify_input.draft_token_num
            ):
                setattr(verify_input, _TREES, _Trees(verify_input))
        except Exception:
            logger.exception("sglang-lp: a step reads its drafts later than it should")

    return capture


def make_verify(edit: Callable[..., None]) -> Any:
    """Return the hook before a verify step samples.

    Args:
        edit: Called with the logits, the ``SamplingBatchInfo``, the number of nodes, a list of
            which requests a grammar has masked, and a function that reads the trees.
    """

    def verify(
        verify_input: Any,
        batch: Any,
        logits_output: Any,
        grammar_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not _has_processors(batch):
            return None

        def read() -> Drafts:
            trees = getattr(verify_input, _TREES, None) or _Trees(verify_input)
            return trees.read()

        def apply(logits: torch.Tensor) -> None:
            masked = [req.grammar is not None for req in batch.reqs] if batch.has_grammar else ()
            edit(logits, batch.sampling_info, verify_input.draft_token_num, masked, read)

        mask = _AfterGrammar(grammar_mask, apply)
        return (verify_input, batch, logits_output, mask, *args), kwargs

    return verify


def _has_processors(batch: Any) -> bool:
    info = batch.sampling_info
    return info is not None and info.has_custom_logit_processor and not batch.forward_mode.is_idle()
