"""Plain forms of SGLang's kernels for speculative decoding, for tensors of a CPU.

Each function takes the arguments of the kernel that it replaces, and writes into them. They take
microseconds; the kernels that exist in Triton take tens of milliseconds a request in Triton's
interpreter.
"""

from __future__ import annotations

from typing import Any


def verify_tree_greedy(
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrieve_index: Any,
    retrieve_next_token: Any,
    retrieve_next_sibling: Any,
    target_predict: Any,
) -> None:
    """Walk each tree from its root along the tokens that the target predicts."""
    tokens, index = candidates.tolist(), retrieve_index.tolist()
    child, sibling = retrieve_next_token.tolist(), retrieve_next_sibling.tolist()
    target = target_predict.reshape(-1).tolist()
    for b, first in enumerate(row[0] for row in index):
        last, node, count = first, 0, 0
        accept_index[b, 0] = last
        for _ in range(1, accept_index.shape[1]):
            node = child[b][node]
            while node != -1 and tokens[b][node] != target[last]:
                node = sibling[b][node]
            if node == -1:
                break
            predicts[last] = target[last]
            last = index[b][node]
            count += 1
            accept_index[b, count] = last
        accept_token_num[b] = count
        predicts[last] = target[last]


def tree_speculative_sampling_target_only(
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrive_index: Any,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    uniform_samples: Any,
    uniform_samples_for_final_sampling: Any,
    target_probs: Any,
    draft_probs: Any,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept drafted tokens by the target's probabilities; SGLang has it in CUDA only."""
    tokens, index = candidates.tolist(), retrive_index.tolist()
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    coins = uniform_samples.tolist()
    width = accept_index.shape[1]
    for b, first in enumerate(row[0] for row in index):
        last, row, node, count, mass = first, 0, 0, 0, 0.0
        accept_index[b, 0] = last
        coin = coins[b][0]
        for _ in range(1, width):
            node = child[b][node]
            while node != -1:
                token = tokens[b][node]
                p = float(target_probs[b, row, token])
                mass += p
                if p > 0 and (coin < mass / threshold_acc or p >= threshold_single):
                    mass, row, coin = 0.0, node, coins[b][node]
                    predicts[last] = token
                    count += 1
                    last = index[b][node]
                    accept_index[b, count] = last
                    break
                draft_probs[b, row, token] = target_probs[b, row, token]
                node = sibling[b][node]
            if node == -1:
                break
        accept_token_num[b] = count
        rest = target_probs[b, row].clone()
        if count != width - 1:
            rest = (rest - draft_probs[b, row]).clamp_(min=0)
        total = rest.cumsum(0)
        threshold = float(uniform_samples_for_final_sampling[b]) * float(total[-1])
        over, valid = ((total > threshold) & (rest > 0)).nonzero(), (rest > 0).nonzero()
        chosen = over[0] if len(over) else valid[-1] if len(valid) else [len(rest) - 1]
        predicts[last] = int(chosen[0])


def top_k_renorm_prob(probs: Any, top_ks: Any) -> Any:
    """Return each row with only its ``top_ks`` likeliest tokens, adding up to 1."""
    ranks = probs.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    kept = probs.masked_fill(ranks >= top_ks.view(-1, 1), 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def top_p_renorm_prob(probs: Any, top_ps: Any) -> Any:
    """Return each row with only the likeliest tokens that reach ``top_ps``, adding up to 1."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_ps.view(-1, 1), 0.0)
    kept = ordered.new_zeros(probs.shape).scatter_(-1, order, ordered)
    return kept / kept.sum(dim=-1, keepdim=True)


def build_tree(
    parent_list: Any,
    selected_index: Any,
    verified_seq_len: Any,
    tree_mask: Any,
    positions: Any,
    retrieve_index: Any,
    retrieve_next_token: Any,
    retrieve_next_sibling: Any,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int = 0,
) -> None:
    """Link the drafted tokens that were selected; masks FULL_MASK (0) and QLEN_ONLY (1)."""
    n = draft_token_num
    chosen, parents_of = selected_index.tolist(), parent_list.tolist()
    at = 0
    for b, length in enumerate(verified_seq_len.tolist()):
        parent = [-1]
        for i in range(1, n):
            group = chosen[b][i - 1] // topk
            parent.append(0 if group == 0 else 1 + chosen[b].index(parents_of[b][group]))
        child, sibling = [-1] * n, [-1] * n
        for i in reversed(range(1, n)):
            sibling[i], child[parent[i]] = child[parent[i]], i
        for i in range(n):
            prefix = length if int(tree_mask_mode) == 0 else 0
            row = tree_mask[at : at + prefix + n]
            at += prefix + n
            row[prefix:] = False
            row[prefix] = True
            node, steps = i, 0
            while node > 0:
                row[prefix + node] = True
                node, steps = parent[node], steps + 1
            positions[b * n + i] = length + steps
            retrieve_index[b, i] = b * n + i
            retrieve_next_token[b, i] = child[i]
            if sibling[i] != -1:
                retrieve_next_sibling[b, i] = sibling[i]


def reconstruct_tree(
    tree_mask: Any,
    verified_seq_len: Any,
    positions: Any,
    retrieve_index: Any,
    retrieve_next_token: Any,
    retrieve_next_sibling: Any,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Work the links of each tree out of its mask."""
    n = draft_token_num
    masks = tree_mask.view(batch_size, n, n).tolist()
    for b, length in enumerate(verified_seq_len.tolist()):
        child, sibling = [-1] * n, [-1] * n
        for i in reversed(range(n)):
            above = [j for j in range(i) if masks[b][i][j]]
            positions[b * n + i] = length + len(above)
            retrieve_index[b, i] = b * n + i
            if above:
                sibling[i], child[above[-1]] = child[above[-1]], i
            retrieve_next_token[b, i] = child[i]
        for i in range(n):
            retrieve_next_sibling[b, i] = sibling[i]


def assign_req_to_token_pool(
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    out_cache_loc: Any,
    batch_size: int,
) -> None:
    """Write the places of new tokens into the requests' tables."""
    at = 0
    rows, starts, ends = (x.tolist() for x in (req_pool_indices, start_offset, end_offset))
    for row, start, end in zip(rows, starts, ends, strict=True):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def assign_draft_cache_locs(
    req_pool_indices: Any,
    req_to_token: Any,
    seq_lens: Any,
    out_cache_loc: Any,
    topk: int,
    num_cols: int,
    positions: Any = None,
    mrope: Any = None,
) -> None:
    """Read the places of drafted tokens out of the requests' tables."""
    width = topk * num_cols
    for i, (row, start) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        out_cache_loc[i * width : (i + 1) * width] = req_to_token[row, start : start + width]
        if positions is not None:
            positions[i * topk : (i + 1) * topk] = start


def assign_extend_cache_locs(
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    batch_size: int,
    draft_token_num: int,
    device: Any,
) -> Any:
    """Return the places of the tokens that are verified."""
    import torch

    rows, starts, ends = (x.tolist() for x in (req_pool_indices, start_offset, end_offset))
    parts = [req_to_token[r, a:b] for r, a, b in zip(rows, starts, ends, strict=True)]
    return torch.cat(parts).long()


def gather_spec_extras(
    indices: Any,
    topk_p_buf: Any,
    topk_index_buf: Any,
    output_tokens_buf: Any,
    hidden_states_buf: Any,
) -> Any:
    """Return the rows of hidden states from which a draft model continues."""
    hidden = None if hidden_states_buf is None else hidden_states_buf[indices]
    return topk_p_buf[indices], topk_index_buf[indices], output_tokens_buf[indices], hidden


def fill_accept_out_cache_loc(
    accept_index: Any, out_cache_loc: Any, accept_out_cache_loc: Any, size: int
) -> None:
    """Move the places of accepted tokens to the front."""
    chosen = accept_index.reshape(-1)[:size]
    chosen = chosen[chosen != -1].long()
    accept_out_cache_loc[: len(chosen)] = out_cache_loc[chosen]


def fill_front_out_cache_loc(num_front: Any, out_cache_loc: Any, front_out_cache_loc: Any) -> None:
    """Move the first places of each request to the front."""
    at = 0
    window = out_cache_loc.view(num_front.numel(), -1)
    for row, count in zip(window, num_front.tolist(), strict=True):
        front_out_cache_loc[at : at + count] = row[:count]
        at += count


def set_kv_prefixes(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    loc_2d: Any,
    commit_lens: Any,
    _row_dim: int,
    _store_dtype: Any,
) -> None:
    """Write what was committed of each block into a cache."""
    width = loc_2d.shape[1]
    for i, count in enumerate(commit_lens.tolist()):
        places, rows = loc_2d[i, :count], slice(i * width, i * width + count)
        k_cache[places] = k[rows].view(count, *k_cache.shape[1:]).view(k_cache.dtype)
        v_cache[places] = v[rows].view(count, *v_cache.shape[1:]).view(v_cache.dtype)
