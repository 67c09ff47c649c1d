"""An SGLang plugin that makes LoRA adapters run on a machine without a GPU.

SGLang 0.5.23 computes them in plain torch with ``--lora-backend torch_native``, but keeps their
tensors in pinned memory, and torch refuses to pin without a GPU driver. Without ``VARIABLES``
nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["VARIABLES", "install"]

VARIABLES: Mapping[str, str] = {"SGLANG_LP_TEST_LORA": "1"}


def install() -> None:
    """Let pinned memory be memory; SGLang calls this in each of its processes."""
    if not VARIABLES.items() <= os.environ.items():
        return
    import torch

    def unpinned(create: Any) -> Any:
        def created(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("pin_memory", None)
            return create(*args, **kwargs)

        return created

    def stay(tensor: Any) -> Any:
        return tensor

    torch.tensor, torch.zeros = unpinned(torch.tensor), unpinned(torch.zeros)
    torch.Tensor.pin_memory = stay  # type: ignore[assignment,method-assign]
