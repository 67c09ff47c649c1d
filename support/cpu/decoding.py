"""An SGLang plugin that computes the attention of a decoding step at once, on a CPU.

SGLang's ``torch_native`` backend goes through the requests of a batch one by one, which takes most
of a step of a small model. Here their keys and values are read together, the shorter ones padded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["NAME", "install"]

#: What ``SGLANG_PLUGINS`` calls this plugin.
NAME = "sglang_lp_cpu_decoding"


def install() -> None:
    """Change SGLang in this process; SGLang calls this before it makes a scheduler."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    TorchNativeAttnBackend._run_sdpa_forward_decode = _attend


def _attend(
    _backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    sliding_window_size: int | None = None,
    **_others: Any,
) -> torch.Tensor:
    """Attend with one query for each request; shapes as SGLang's function has them."""
    import torch

    if encoder_lens is not None or sliding_window_size is not None:
        raise NotImplementedError("expected attention to all tokens before, in a decoder alone")
    longest = int(seq_lens.max())
    is_there = torch.arange(longest) < seq_lens[:, None]
    # Slot 0 belongs to no request: positions after the end of a request are read from there.
    slots = req_to_token[req_pool_indices, :longest].where(is_there, 0)
    output[:] = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, None],
        k_cache[slots].movedim(1, 2),
        v_cache[slots].movedim(1, 2),
        attn_mask=is_there[:, None, None],
        scale=scaling,
        enable_gqa=enable_gqa,
    )[:, :, 0]
    return output
