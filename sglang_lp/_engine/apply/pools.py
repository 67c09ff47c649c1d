"""Pools: tokens that get the probability of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp._engine.apply.device import device_of
from sglang_lp.edits.ids import Ids, identity, once

if TYPE_CHECKING:
    import torch

_MINUS_INF = -math.inf


def pool(logits: torch.Tensor, pools: Sequence[Sequence[tuple[int, Ids | list[int], int]]]) -> None:
    """Give tokens the probability of others, in place.

    Args:
        logits: Shape ``(rows, vocab)``.
        pools: Turns, applied in order. Each is a list of row, ids, and the token that gets their
            probability; a row is in a turn at most once.
    """
    if not pools:
        return
    import torch

    device = device_of(logits)
    for turn in pools:
        by_ids: dict[object, list[tuple[int, Ids | list[int], int]]] = {}
        for entry in turn:
            by_ids.setdefault(identity(entry[1]), []).append(entry)
        for entries in by_ids.values():
            ids = once(entries[0][1])
            if len(entries) == 1 and device.ROW_BY_ROW:
                ((index, _, token_id),) = entries
                row = logits[index]
                row[token_id] = row.index_select(0, ids).float().logsumexp(0).to(logits.dtype)
                row.index_fill_(0, ids, _MINUS_INF)
                continue
            rows = torch.tensor([row for row, _, _ in entries])
            into = torch.tensor([token_id for _, _, token_id in entries])
            if not device.ROW_BY_ROW:  # one copy for all three
                parts = [len(ids), len(rows), len(into)]
                sent = device.send(torch.cat((ids, rows, into)), logits.device)
                ids, rows, into = torch.split(sent, parts)
            where = rows[:, None], ids
            logits[rows, into] = logits[where].float().logsumexp(1).to(logits.dtype)
            # A number would be copied to the device, and the host would wait for the copy.
            logits[where] = logits.new_full((), _MINUS_INF)
