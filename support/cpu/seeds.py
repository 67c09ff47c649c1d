"""An SGLang plugin that makes ``--enable-deterministic-inference`` run on a machine without a GPU.

With that switch SGLang samples by ``sampling_seed``, and takes attention and matrix products from
GPU kernels that compute a row alike in every batch; plain torch replaces them here. Its hash of
seed, position and token runs in Triton's interpreter. Without ``VARIABLES`` nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from support.cpu import speculation

if TYPE_CHECKING:
    import torch

__all__ = ["VARIABLES", "install"]

VARIABLES: Mapping[str, str] = {**speculation.VARIABLES, "SGLANG_LP_TEST_SEEDS": "1"}
_BACKENDS = ["torch_native"]


def install() -> None:
    """Allow the backend; SGLang calls this before it reads its arguments."""
    if not VARIABLES.items() <= os.environ.items():
        return
    from sglang.srt import batch_invariant_ops
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers import sampler

    choices.add_deterministic_attention_backend_choices(_BACKENDS)
    choices.add_radix_supported_deterministic_attention_backend_choices(_BACKENDS)
    batch_invariant_ops.enable_batch_invariant_mode = lambda: None
    sampler.murmur_hash32 = _murmur_hash32


def _murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Run SGLang's kernel, as it does itself where it has a GPU."""
    import torch
    from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32_kernel

    hashed = torch.empty((len(seed), len(columns)), dtype=torch.uint32)
    murmur_hash32_kernel[len(seed), 1](
        seed, positions, columns, hashed, len(seed), len(columns), BLOCK_SIZE=len(columns)
    )
    return hashed
