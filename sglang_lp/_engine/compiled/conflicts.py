"""Edits of one row that leave no token: found before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp._engine.compiled.masks import mask
from sglang_lp.edits.ids import Ids
from sglang_lp.edits.recording import Recording

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.compiled.standing import Standing

__all__ = [
    "ALL_BANNED",
    "NONE_ALLOWED",
    "all_allowed",
    "all_banned",
    "clash",
    "clash_with",
    "leaves_none",
]

NONE_ALLOWED, ALL_BANNED = "no allowed token is left", "every token is banned"


def clash(recording: Recording) -> str | None:
    """Return how the forced token contradicts the other edits, or ``None``."""
    forced = recording.forced
    if forced is None:
        return None
    if recording.clash is not None:
        return recording.clash
    if any(forced not in ids for ids in recording.allowed):
        return f"token {forced} is forced but not allowed"
    if any(forced in ids for ids in recording.banned):
        return f"token {forced} is both forced and banned"
    return None


def clash_with(standing: Standing | None, recording: Recording) -> str | None:
    """Return how a forced token contradicts edits that always hold, or ``None``."""
    if standing is None:
        return None
    now, always = recording.forced, standing.forced
    if always is None:
        if now is None or standing.permits(now):
            return None
        how = "both forced and banned" if standing.allowed is None else "forced but not allowed"
        return f"token {now} is {how}"
    both = Recording(recording.vocab_size)
    both.add(recording)
    both.force(always)
    return clash(both)


def leaves_none(recording: Recording, standing: Standing | None) -> bool:
    """Tell whether edits that force no token leave none."""
    if recording.allowed:
        return not len(all_allowed(recording, standing))
    return all_banned(recording.banned, recording.vocab_size, standing)


def all_allowed(
    recording: Recording, standing: Standing | None = None
) -> Ids | list[int] | torch.Tensor:
    """Return what all lists of allowed tokens hold, bans taken away."""
    first, *others = recording.allowed
    if not (others or recording.banned or standing):
        return first
    if any(isinstance(ids, Ids) for ids in (first, *others, *recording.banned)):
        import torch

        before = None if standing is None else standing.open
        left = mask(recording.vocab_size, recording.allowed, recording.banned, before)
        return torch.frombuffer(left, dtype=torch.uint8).nonzero().view(-1)
    wanted = {*first}.intersection(*others).difference(*recording.banned)
    return [i for i in first if i in wanted and (standing is None or standing.permits(i))]


def all_banned(
    banned: Sequence[Ids | list[int]], vocab_size: int, standing: Standing | None = None
) -> bool:
    """Tell whether no token is left."""
    if not banned:
        return False
    left = vocab_size if standing is None else standing.left
    if sum(map(len, banned)) < left:
        return False  # the usual case, at the price of one addition per list
    if any(isinstance(ids, Ids) for ids in banned):
        return 1 not in mask(vocab_size, (), banned, None if standing is None else standing.open)
    out = {i for ids in banned for i in ids if standing is None or standing.permits(i)}
    return len(out) == left
