"""An SGLang plugin that makes its speculative decoding run on a machine without a GPU.

The scheduler, the workers and ``eagle_sample`` are SGLang's own. Its Triton kernels run in Triton's
interpreter, which needs ``VARIABLES`` in the environment before Triton is imported; without them
nothing is changed. :mod:`support.cpu.kernels` replaces slow kernels and kernels in CUDA, and plain
torch computes the attention of drafts and trees.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from typing import Any

from support.cpu import chains, rotary
from support.plugins import foreseeing

__all__ = ["NAME", "VARIABLES", "install"]

#: What ``SGLANG_PLUGINS`` calls this plugin.
NAME = "sglang_lp_cpu_speculation"
VARIABLES: Mapping[str, str] = {
    "TRITON_INTERPRET": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "SGLANG_NATIVE_MOVE_KV_CACHE": "1",
}


def install() -> None:
    """Change SGLang in this process; SGLang calls this before it makes a scheduler."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    _take_triton_kernels()
    _take_plain_kernels()
    _verify_trees()
    _attend_in_drafts()
    rotary.install()
    _keep_overlap()
    chains.install()
    foreseeing.install()


def _take_triton_kernels() -> None:
    """Take the kernels that SGLang has in Triton for Intel's devices, and in CUDA otherwise."""
    from support.cpu import kernels

    # SGLang's compiled kernels, which need CUDA's library to be imported.
    package, of_drafts = types.ModuleType("sgl_kernel"), types.ModuleType("sgl_kernel.speculative")
    vars(of_drafts)["reconstruct_indices_from_tree_mask"] = kernels.reconstruct_tree
    package.__dict__.update(
        tree_speculative_sampling_target_only=kernels.tree_speculative_sampling_target_only,
        top_k_renorm_prob=kernels.top_k_renorm_prob,
        top_p_renorm_prob=kernels.top_p_renorm_prob,
    )
    stand_ins = {"sgl_kernel": package, "sgl_kernel.speculative": of_drafts}
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    from sglang.kernels.ops.speculative import cache_locs, spec_tree

    cache_locs._is_xpu = True
    if not hasattr(spec_tree, "verify_tree_greedy_triton"):
        return  # Before SGLang 0.5.23 a verify step imports them.
    from sglang.kernels.ops.speculative import reconstruct_tree

    reconstruct_tree._is_xpu = spec_tree._is_xpu = True
    for name, module in before.items():
        if module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module


def _take_plain_kernels() -> None:
    from sglang.kernels.ops.speculative import cache_locs, eagle, gather_spec_extras, spec_tree
    from sglang.srt.mem_cache import allocation
    from sglang.srt.speculative import eagle_utils

    from support.cpu import kernels

    # None where there is no CUDA.
    for function in (
        kernels.tree_speculative_sampling_target_only,
        kernels.top_k_renorm_prob,
        kernels.top_p_renorm_prob,
    ):
        setattr(eagle_utils, function.__name__, function)
    if hasattr(spec_tree, "verify_tree_greedy_triton"):
        from sglang.kernels.ops.speculative import reconstruct_tree

        rebuild = kernels.reconstruct_tree
        _put(reconstruct_tree, "reconstruct_indices_from_tree_mask_triton", rebuild)
        _put(spec_tree, "sgl_build_tree_kernel_triton", kernels.build_tree)
        _put(spec_tree, "verify_tree_greedy_triton", kernels.verify_tree_greedy)
        _put(cache_locs, "fill_front_out_cache_loc_func", kernels.fill_front_out_cache_loc)
        _put(cache_locs, "assign_draft_cache_locs_contiguous_func", kernels.assign_draft_cache_locs)
    else:  # before SGLang 0.5.23
        eagle_utils.sgl_build_tree_kernel_efficient = kernels.build_tree
        _put(eagle_utils, "verify_tree_greedy_func", _verify_tree_greedy)
    for module, name, plain in (
        (allocation, "assign_req_to_token_pool_func", kernels.assign_req_to_token_pool),
        (cache_locs, "assign_extend_cache_locs_func", kernels.assign_extend_cache_locs),
        (eagle, "fill_accept_out_cache_loc_func", kernels.fill_accept_out_cache_loc),
        (gather_spec_extras, "gather_spec_extras", kernels.gather_spec_extras),
    ):
        _put(module, name, plain)


def _verify_tree_greedy(
    predicts: Any, accept_index: Any, accept_token_num: Any, *args: Any, topk: int = -1, **more: Any
) -> tuple[Any, Any, Any]:
    """Do what SGLang's function of before 0.5.23 does, which also returns what it wrote."""
    from support.cpu import kernels

    kernels.verify_tree_greedy(predicts, accept_index, accept_token_num, *args, **more)
    return predicts, accept_index, accept_token_num


def _put(module: Any, name: str, plain: Any) -> None:
    """Put a function in the place of SGLang's, wherever it was imported to."""
    from sglang.srt.plugins.hook_registry import _propagate_patch

    original = getattr(module, name)
    setattr(module, name, plain)
    _propagate_patch(original, plain, module)


def _verify_trees() -> None:
    """Teach the ``torch_native`` backend to verify drafted tokens, each with its own path."""
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
    from torch.nn.functional import scaled_dot_product_attention

    original = TorchNativeAttnBackend.forward_extend

    def forward_extend(
        self: Any,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> Any:
        if not forward_batch.forward_mode.is_target_verify():
            return original(self, q, k, v, layer, forward_batch, save_kv_cache)
        verify_input = forward_batch.spec_info
        if type(verify_input).__name__ == "DFlashVerifyInput":
            return chains.attend_to_blocks(self, q, k, v, layer, forward_batch, save=save_kv_cache)
        width = verify_input.draft_token_num
        if save_kv_cache and k is not None:
            places = KVWriteLoc(forward_batch.out_cache_loc, None)
            self.token_to_kv_pool.set_kv_buffer(layer, places, k, v)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = torch.empty((q.shape[0], layer.tp_q_head_num, layer.v_head_dim), dtype=q.dtype)
        at = 0
        for i, prefix in enumerate(forward_batch.seq_lens.tolist()):
            length = prefix + width
            row = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices[i], :length]
            rows = slice(i * width, (i + 1) * width)
            # FULL_MASK: of each request, one row of prefix + width per node.
            mask = verify_input.custom_mask[at : at + width * length].view(1, width, length)
            at += width * length
            out[rows] = scaled_dot_product_attention(
                q[rows].movedim(0, 1),
                keys[row].movedim(0, 1).to(q.dtype),
                values[row].movedim(0, 1).to(q.dtype),
                attn_mask=mask,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
                scale=layer.scaling,
            ).movedim(1, 0)
        return out.view(q.shape[0], -1)

    TorchNativeAttnBackend.forward_extend = forward_extend


def _attend_in_drafts() -> None:  # noqa: C901 - two classes with a base that is SGLang's
    """Give draft models a ``torch_native`` backend, one object for each of their steps."""
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
    from sglang.srt.speculative.draft_utils import DraftBackendFactory
    from torch.nn.functional import scaled_dot_product_attention

    class DraftStep(TorchNativeAttnBackend):  # type: ignore[misc]
        """Step ``step`` attends to the prefix and to ``step + 1`` places of its own branch."""

        def __init__(self, model_runner: Any, topk: int, steps: int, step: int) -> None:
            super().__init__(model_runner)
            self.topk, self.steps, self.step = topk, steps, step

        def forward_decode(
            self,
            q: Any,
            k: Any,
            v: Any,
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
        ) -> Any:
            if save_kv_cache and k is not None:
                places = KVWriteLoc(forward_batch.out_cache_loc, None)
                self.token_to_kv_pool.set_kv_buffer(layer, places, k, v)
            keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
            values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
            q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
            out = torch.empty((q.shape[0], layer.tp_q_head_num, layer.v_head_dim), dtype=q.dtype)
            pool = self.req_to_token_pool.req_to_token
            for i, length in enumerate(forward_batch.seq_lens.tolist()):
                row = pool[forward_batch.req_pool_indices[i]]
                for branch in range(self.topk):
                    own = length + branch * self.steps
                    slots = torch.cat((row[:length], row[own : own + self.step + 1]))
                    at = i * self.topk + branch
                    out[at] = scaled_dot_product_attention(
                        q[at : at + 1].movedim(0, 1),
                        keys[slots].movedim(0, 1).to(q.dtype),
                        values[slots].movedim(0, 1).to(q.dtype),
                        enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
                        scale=layer.scaling,
                    ).squeeze(1)
            return out.view(q.shape[0], -1)

    class DraftSteps:
        """As SGLang's multi-step backends."""

        needs_cpu_seq_lens = True

        def __init__(self, model_runner: Any, topk: int, steps: int) -> None:
            self.attn_backends = [
                DraftStep(model_runner, topk, steps, step) for step in range(steps - 1)
            ]

        def init_forward_metadata(self, forward_batch: Any) -> None:
            """Do nothing."""

    def create_decode_backend(self: Any) -> Any:
        if self.speculative_num_steps <= 1:
            return None
        return DraftSteps(self.draft_model_runner, self.topk, self.speculative_num_steps)

    def create_draft_extend_backend(self: Any) -> Any:
        return TorchNativeAttnBackend(self.draft_model_runner)

    DraftBackendFactory.create_decode_backend = create_decode_backend
    DraftBackendFactory.create_draft_extend_backend = create_draft_extend_backend


def _keep_overlap() -> None:
    """Keep overlap scheduling, which SGLang switches off for speculation on a CPU."""
    import torch
    from sglang.srt.arg_groups import speculative_hook

    speculative_hook._disable_overlap_schedule_for_cpu = lambda _server_args: None
    # SGLang before 0.5.22 says which stream uses a tensor; a CPU has none.
    torch.Tensor.record_stream = lambda _tensor, _stream: None  # type: ignore[assignment]
