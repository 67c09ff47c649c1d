"""Conflicts: edits of one row that leave no token, found before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp._engine.compiled.masks import TokenMask, mask_bytes
from sglang_lp.edits.ids import Ids

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits.recording import Recording

NONE_ALLOWED, ALL_BANNED = "no allowed token is left", "every token is banned"


def forced_conflict(recording: Recording) -> str | None:
    """Return why the forced token contradicts the other edits, or ``None``."""
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


def leaves_none(recording: Recording, before: TokenMask | None) -> bool:
    """Tell whether edits that force no token leave none of those possible before."""
    if recording.allowed:
        return not len(allowed_ids(recording, before))
    return bans_all(recording.banned, recording.vocab_size, before)


def allowed_ids(
    recording: Recording, before: TokenMask | None = None
) -> Ids | list[int] | torch.Tensor:
    """Return the ids that every allowed list has, without the banned ones.

    Args:
        recording: Allows some tokens only.
        before: Tokens that other edits of the row leave; ``None`` for all.
    """
    first, *others = recording.allowed
    if not (others or recording.banned or before):
        return first
    if any(isinstance(ids, Ids) for ids in (first, *others, *recording.banned)):
        import torch

        left = mask_bytes(
            recording.vocab_size,
            recording.allowed,
            recording.banned,
            None if before is None else before.bytes,
        )
        return torch.frombuffer(left, dtype=torch.uint8).nonzero().view(-1)
    wanted = {*first}.intersection(*others).difference(*recording.banned)
    return [i for i in first if i in wanted and (before is None or before.permits(i))]


def bans_all(
    banned: Sequence[Ids | list[int]], vocab_size: int, before: TokenMask | None = None
) -> bool:
    """Tell whether bans leave none of the tokens possible before; the vocabulary is the default."""
    if not banned:
        return False
    left = vocab_size if before is None else before.count
    if sum(map(len, banned)) < left:
        return False  # the usual case, at the price of one addition per list
    if any(isinstance(ids, Ids) for ids in banned):
        return 1 not in mask_bytes(vocab_size, (), banned, None if before is None else before.bytes)
    out = {i for ids in banned for i in ids if before is None or before.permits(i)}
    return len(out) == left
