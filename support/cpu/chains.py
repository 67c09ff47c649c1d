"""DFLASH and DSPARK on a machine without a GPU: a part of :mod:`support.cpu.speculation`.

No step of either algorithm is changed: the device is admitted, ``torch_native`` attends to blocks,
and plain forms replace kernels. An untrained DFLASH model drafts by the table in the file
``BIGRAM`` next to its weights, if there is such a file: the likeliest successor of each token.
"""

# ruff: noqa: SLF001 - SGLang has no public switch for what this changes
from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["BIGRAM", "BLIND", "attend_to_blocks", "install"]

#: File of a draft model: the successor of each token.
BIGRAM = "bigram.json"
#: Environment variable: processors are shown drafts in the wrong order.
BLIND = "SGLANG_LP_TEST_BLIND"


def install() -> None:
    """Change SGLang in this process."""
    _admit()
    _take_plain_kernels()
    _keep_type()
    _draft_from_table()
    if os.environ.get("SGLANG_RAGGED_VERIFY_MODE") == "compact":
        _cut_at_random()
    if BLIND in os.environ:
        _blind()


def _admit() -> None:
    from sglang.srt.arg_groups import choices, speculative_hook

    choices.DRAFT_ATTENTION_BACKEND_CHOICES.append("torch_native")

    class OnCuda:
        """The resolved arguments, but for the device."""

        def __init__(self, arguments: Any) -> None:
            self._arguments = arguments

        def __getattr__(self, name: str) -> Any:
            return "cuda" if name == "device" else getattr(self._arguments, name)

    view = speculative_hook.resolving_view
    for name in ("_handle_dflash", "_handle_dspark"):
        original = getattr(speculative_hook, name)

        def handle(server_args: Any, original: Any = original) -> None:
            speculative_hook.resolving_view = lambda args: OnCuda(view(args))
            try:
                original(server_args)
            finally:
                speculative_hook.resolving_view = view

        setattr(speculative_hook, name, handle)


def attend_to_blocks(  # noqa: PLR0913, PLR0917 - as in SGLang
    backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *, save: bool
) -> Any:
    """Let each token of a block attend to the prefix, and to its block or the part before it.

    Takes what ``TorchNativeAttnBackend.forward_extend`` does; ``save`` is ``save_kv_cache``.
    """
    import torch
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
    from torch.nn.functional import scaled_dot_product_attention

    info = forward_batch.spec_info
    layout = info.ragged_verify_layout
    widths = [info.num_tokens_per_req] * len(forward_batch.seq_lens)
    if layout is not None:
        widths = layout.verify_lens.tolist()
    if save and k is not None:
        k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
        places = KVWriteLoc(forward_batch.out_cache_loc, None)
        backend.token_to_kv_pool.set_kv_buffer(layer, places, k, v)
    keys = backend.token_to_kv_pool.get_key_buffer(layer.layer_id)
    values = backend.token_to_kv_pool.get_value_buffer(layer.layer_id)
    causal = layer.attn_type != AttentionType.ENCODER_ONLY
    q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
    out = torch.zeros((q.shape[0], layer.tp_q_head_num, layer.v_head_dim), dtype=q.dtype)
    pool, end = backend.req_to_token_pool.req_to_token, 0
    for i, prefix in enumerate(forward_batch.seq_lens.tolist()):
        width = widths[i]
        slots = pool[forward_batch.req_pool_indices[i], : prefix + width]
        rows = slice(end, end + width)
        end += width
        mask = torch.ones(width, prefix + width, dtype=torch.bool)
        if causal:
            mask[:, prefix:].tril_()
        out[rows] = scaled_dot_product_attention(
            q[rows].movedim(0, 1),
            keys[slots].movedim(0, 1).to(q.dtype),
            values[slots].movedim(0, 1).to(q.dtype),
            attn_mask=mask[None],
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
            scale=layer.scaling,
        ).movedim(1, 0)
    return out.view(q.shape[0], -1)


def _take_plain_kernels() -> None:
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.speculative import dflash_utils

    from support.cpu import kernels

    memory_pool._set_kv_buffer_prefix_valid_impl = kernels.set_kv_prefixes
    dflash_utils.tree_speculative_sampling_target_only = (
        kernels.tree_speculative_sampling_target_only
    )
    dflash_utils._DFLASH_SAMPLING_VERIFY_AVAILABLE = True


def _keep_type() -> None:
    """Undo the cast of a draft's input to bfloat16, which the weights of the tests are not."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def forward(
        original: Any, model: Any, *args: Any, input_embeds: Any = None, **more: Any
    ) -> Any:
        if input_embeds is not None:
            input_embeds = input_embeds.to(model.fc.weight.dtype)
        return original(model, *args, input_embeds=input_embeds, **more)

    name = "sglang.srt.models.dflash.DFlashDraftModel.forward"
    HookRegistry.register(name, forward, HookType.AROUND)


def _draft_from_table() -> None:
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    @cache
    def table(directory: str) -> Any:
        path = Path(directory) / BIGRAM
        return torch.tensor(json.loads(path.read_text())) if path.exists() else None

    def propose(original: Any, worker: Any, **given: Any) -> Any:
        drafted = original(worker, **given)
        follows = table(worker.server_args.speculative_draft_model_path)
        if follows is None:
            return drafted
        drafted = drafted.view(-1, worker.block_size - 1)
        token_ids = worker._draft_block_ids_buf[: len(drafted), 0]
        columns = []
        for _ in range(drafted.shape[1]):
            token_ids = follows[token_ids]
            columns.append(token_ids)
        return torch.stack(columns, 1).reshape(-1)

    worker = "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2."
    HookRegistry.register(
        worker + "_greedy_sample_from_vocab_parallel_head", propose, HookType.AROUND
    )


def _cut_at_random() -> None:
    """Let DSPARK's compact mode verify a random number of each request's drafts."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    planner = "sglang.srt.speculative.dspark_components.dspark_planner.DSparkVerifyPlanner."

    def after_init(_result: None, self: Any, *_args: Any, **_kwargs: Any) -> None:
        self._is_verify_all = False

    def lengths(self: Any, *, req_pool_indices: Any, device: Any, **_rest: Any) -> Any:
        high = self.verify_num_draft_tokens + 1
        return torch.randint(1, high, req_pool_indices.shape, dtype=torch.int32, device=device)

    HookRegistry.register(planner + "__init__", after_init, HookType.AFTER)
    HookRegistry.register(planner + "_schedule_verify_lens", lengths, HookType.REPLACE)


def _blind() -> None:
    from sglang_lp.server.scheduler import chains

    original = chains._VerifyStep.drafts

    def drafts(*given: Any) -> Any:
        right = original(*given)
        wrong = [[chain[0], *reversed(chain[1:])] for chain in right.token_ids]
        return right._replace(token_ids=wrong)

    vars(chains)["_VerifyStep"].drafts = drafts
