"""Compiled edits: edits of several steps, checked and summed once, shared by equal requests."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from sglang_lp._engine.compiled.biases import Biases, biases_of, cache_key
from sglang_lp._engine.compiled.conflicts import (
    ALL_BANNED,
    NONE_ALLOWED,
    allowed_ids,
    bans_all,
    forced_conflict,
)
from sglang_lp._engine.compiled.masks import TokenMask
from sglang_lp.edits.ids import Ids, identity
from sglang_lp.edits.recording import Recording

if TYPE_CHECKING:
    import torch

#: From this many ids on, edits are applied as one pass over the whole row (`make bench
#: PART=bounds`).
WIDE = 4_096


class CompiledEdits:
    """Edits of one request that are the same at several steps.

    Attributes:
        conflict: Why they leave no token, or ``None``.
        forced: The forced token, or ``None``. If there is one, the other edits have no effect.
        allowed: The only ids that are allowed, or ``None`` if the edits allow all.
        banned: Lists of banned ids; empty if ``allowed`` is given, which leaves them out.
        biases: Biased ids and their biases, float64.
        factor: Multiplies all logits, unless it is ``None``.
        sigmas: Standard deviations below the largest logit within which tokens stay, or ``None``.
        mask: The tokens that are left.
        is_wide: Whether the allowed or banned ids are ``WIDE`` or more. Such edits are applied as
            a mask of the whole row.
        device_masks: Masks as each kind of logits needs them; filled by the device modules.
        is_fresh: Whether no row has been masked with these edits yet.
    """

    __slots__ = (
        "__weakref__",
        "_bias_by_id",
        "allowed",
        "banned",
        "biases",
        "conflict",
        "device_masks",
        "factor",
        "forced",
        "is_fresh",
        "is_wide",
        "mask",
        "sigmas",
    )

    #: Those in use. Copies of a request have the same list objects, and so share an entry.
    _shared: ClassVar[WeakValueDictionary[Any, CompiledEdits]] = WeakValueDictionary()

    @classmethod
    def of(cls, recording: Recording) -> CompiledEdits:
        """Compile a recording, or return the compiled edits of an equal one that are in use.

        Raises:
            ProcessorFault: Some of the edits are for one step only.
        """
        key = (
            recording.vocab_size,
            recording.forced,
            recording.clash,
            recording.factor,
            recording.sigmas,
            *(tuple(map(identity, lists)) for lists in (recording.banned, recording.allowed)),
            *((identity(ids), cache_key(values)) for ids, values in recording.biased),
        )
        found = cls._shared.get(key)
        if found is None:
            found = cls._shared[key] = cls(recording)
        return found

    def __init__(self, recording: Recording) -> None:
        recording.check_lasting()
        vocab_size = recording.vocab_size
        self._bias_by_id: dict[int, float] | None = None
        self.device_masks: dict[object, tuple[torch.Tensor, ...]] = {}
        self.is_fresh = True
        self.forced = recording.forced
        self.allowed: Ids | list[int] | torch.Tensor | None = None
        self.banned = recording.banned
        self.biases: Biases = ([], array("d"))
        self.factor = recording.factor
        self.sigmas = recording.sigmas
        self.is_wide = False
        self.conflict = forced_conflict(recording)
        if self.forced is not None:
            self.mask = TokenMask(vocab_size, [self.forced], ())
            return
        if recording.allowed:
            self.allowed = allowed = allowed_ids(recording)
            self.banned = ()
            self.is_wide = len(allowed) >= WIDE
            if not len(allowed):
                self.conflict = NONE_ALLOWED
        else:
            self.is_wide = sum(map(len, self.banned)) >= WIDE
            if bans_all(self.banned, vocab_size):
                self.conflict = ALL_BANNED
        self.mask = TokenMask(vocab_size, self.allowed, self.banned)
        self.biases = biases_of(recording)

    @property
    def bias_by_id(self) -> Mapping[int, float]:
        """The bias of each biased id."""
        if self._bias_by_id is None:
            ids, values = self.biases
            self._bias_by_id = dict(zip(_listed(ids), values.tolist(), strict=True))
        return self._bias_by_id

    def conflict_with(self, recording: Recording) -> str | None:
        """Return why a forced token, here or in a recording, contradicts the other; or ``None``."""
        now, always = recording.forced, self.forced
        if always is None:
            if now is None or self.mask.permits(now):
                return None
            how = "both forced and banned" if self.allowed is None else "forced but not allowed"
            return f"token {now} is {how}"
        both = Recording(recording.vocab_size)
        both.add(recording)
        both.force(always)
        return forced_conflict(both)


def _listed(ids: Sequence[int] | torch.Tensor) -> list[int]:
    return ids if isinstance(ids, list) else ids.tolist()  # type: ignore[union-attr]
