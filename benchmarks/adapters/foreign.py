"""Classes of vLLM's interfaces that ban a token: the least that a processor can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found]
    LogitsProcessor as LogitsProcessorV1,
)
from vllm.v1.worker.gpu.sample.logits_processor import (  # type: ignore[import-not-found]
    LogitsProcessor as LogitsProcessorV2,
)

if TYPE_CHECKING:
    import torch

BANNED = 5


class BansV1(LogitsProcessorV1):  # type: ignore[misc]
    """V1."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:  # noqa: FBT001
        pass

    def is_argmax_invariant(self) -> bool:
        """Tell that it is not."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Do nothing."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Ban the token in all rows."""
        logits[:, BANNED] = float("-inf")
        return logits


class BansV2(LogitsProcessorV2):  # type: ignore[misc]
    """V2."""

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG002
        """Ban the token in all rows."""
        logits[:, BANNED] = float("-inf")
        return logits
