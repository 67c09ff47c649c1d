"""Edits that hold at many steps, put together once and shared by the copies of a request."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from sglang_lp._engine.apply.device import send
from sglang_lp._engine.compiled.biases import Biases, biases_of, bits
from sglang_lp._engine.compiled.conflicts import (
    ALL_BANNED,
    NONE_ALLOWED,
    all_allowed,
    all_banned,
    clash,
)
from sglang_lp._engine.compiled.masks import both, count, mask
from sglang_lp.edits.ids import Ids, identity, tensor_of

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits.recording import Recording

__all__ = ["DENSE", "Standing"]

_MINUS_INF = -math.inf

#: So many cells of a row and more are written by going through the whole row, which takes as long
#: as this many writes.
DENSE = 4_096


class Standing:
    """Edits of a request that are the same at many steps, put together once.

    Attributes:
        conflict: Why they leave no token, or ``None``.
        forced: The forced token.
        allowed: What is allowed, if that is restricted and these are few.
        banned: Lists of banned ids, if these are few.
        biases: Biased ids and their biases, float64.
        dense: Whether ``allowed`` or ``banned`` would be many; see :meth:`shut`.
    """

    __slots__ = (
        "__weakref__",
        "_beside",
        "_biases",
        "_is_new",
        "_left",
        "_masks",
        "_open",
        "_vocab_size",
        "allowed",
        "banned",
        "biases",
        "conflict",
        "dense",
        "forced",
    )

    #: Those in use. Copies of a request have the very same lists of ids, and so share one.
    _shared: ClassVar[WeakValueDictionary[Any, Standing]] = WeakValueDictionary()

    @classmethod
    def of(cls, recording: Recording) -> Standing:
        """Return what a recording amounts to, as it was put together before if it was."""
        key = (
            recording.vocab_size,
            recording.forced,
            recording.clash,
            *(tuple(map(identity, lists)) for lists in (recording.banned, recording.allowed)),
            *((identity(ids), bits(values)) for ids, values in recording.biased),
        )
        found = cls._shared.get(key)
        if found is None:
            found = cls._shared[key] = cls(recording)
        return found

    def __init__(self, recording: Recording) -> None:
        recording.check_lasts()
        self._vocab_size = recording.vocab_size
        self._open: bytearray | None = None
        self._left = -1
        self._is_new = True
        #: Others that hold at every step: how many tokens they leave, with these.
        self._beside: WeakKeyDictionary[Standing, int] = WeakKeyDictionary()
        self._biases: dict[int, float] | None = None
        self._masks: dict[Any, tuple[torch.Tensor, ...]] = {}
        self.forced = recording.forced
        self.allowed: Ids | list[int] | torch.Tensor | None = None
        self.banned = recording.banned
        self.biases: Biases = ([], array("d"))
        self.dense = False
        self.conflict = clash(recording)
        if self.conflict is not None or self.forced is not None:
            return
        if recording.allowed:
            self.allowed = allowed = all_allowed(recording)
            self.banned = ()
            self.dense = len(allowed) >= DENSE
            if not len(allowed):
                self.conflict = NONE_ALLOWED
        else:
            self.dense = sum(map(len, self.banned)) >= DENSE
            if all_banned(self.banned, recording.vocab_size):
                self.conflict = ALL_BANNED
        self.biases = biases_of(recording)

    @property
    def open(self) -> bytearray:
        """For each token of the vocabulary whether it is left."""
        if self._open is None:
            if self.forced is not None:
                self._open = mask(self._vocab_size, [[self.forced]], ())
            elif self.allowed is not None:
                self._open = mask(self._vocab_size, [self.allowed], ())
            else:
                self._open = mask(self._vocab_size, (), self.banned)
        return self._open

    @property
    def left(self) -> int:
        """How many tokens are left."""
        if self._left < 0:
            self._left = count(self.open)
        return self._left

    @property
    def at_least(self) -> int:
        """How many tokens are left, or fewer, without going through them."""
        if self._left >= 0:
            return self._left
        return 0 if self.allowed is not None else self._vocab_size - sum(map(len, self.banned))

    def left_beside(self, other: Standing | None) -> int:
        """How many tokens are left beside other edits that hold."""
        if other is None:
            return self.left
        found = self._beside.get(other)
        if found is None:
            found = self._beside[other] = count(both(self.open, other.open))
        return found

    def permits(self, token_id: int) -> bool:
        """Tell whether these edits leave a token."""
        return bool(self.open[token_id])

    def bias_of(self, token_id: int) -> float:
        """Return the bias of a token."""
        if self._biases is None:
            ids, values = self.biases
            self._biases = dict(zip(_listed(ids), values.tolist(), strict=True))
        return self._biases.get(token_id, 0.0)

    def prepare(self) -> None:
        """Do what the first step that goes through a row with these edits would wait for."""
        self.left  # noqa: B018 - which is kept
        if _latest is not None and _latest not in self._masks and _latest[0].type != "cuda":
            self._masks[_latest] = self._masks_for(*_latest)

    def shut(self, rows: torch.Tensor) -> None:
        """Set the logits of all tokens that are not left to ``-inf``.

        Args:
            rows: Shape ``(any, vocab)``, written in place. All others keep their bits.
        """
        global _latest  # noqa: PLW0603 - of the process, see there
        kind = _latest = rows.device, rows.dtype
        masks = self._masks.get(kind)
        if masks is None:
            if self._is_new and self.allowed is None and len(rows) == 1 and rows.is_cpu:
                # It may not come again, and if it does, in another step.
                self._is_new = False
                for ids in self.banned:
                    rows[0, tensor_of(ids)] = _MINUS_INF
                return
            masks = self._masks[kind] = self._masks_for(*kind)
        if rows.is_cuda:
            rows.masked_fill_(masks[0], _MINUS_INF)
            return
        # On bits, in a twentieth of the time that masked_fill_ takes on a CPU; and row by row,
        # which then come from memory once.
        for row in rows.view(masks[0].dtype):
            row.bitwise_and_(masks[0]).bitwise_or_(masks[1])

    def _masks_for(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Return what is not left; on a CPU the bits that stay, and those that are set."""
        import numpy as np
        import torch

        if device.type == "cuda":
            left = torch.frombuffer(self.open, dtype=torch.uint8)
            return (send(left == 0, device),)
        kind = _INTEGERS[dtype.itemsize]
        minus_inf = int(torch.tensor(_MINUS_INF, dtype=dtype).view(getattr(torch, kind)))
        keep = np.negative(np.frombuffer(self.open, dtype=np.int8), dtype=kind)
        others = np.invert(keep)
        others &= minus_inf
        return torch.from_numpy(keep), torch.from_numpy(others)


#: Device and dtype of the logits that were last gone through: a server's never change.
_latest: tuple[torch.device, torch.dtype] | None = None

#: Types of integers by their size in bytes.
_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}


def _listed(ids: Sequence[int] | torch.Tensor) -> list[int]:
    return ids if isinstance(ids, list) else ids.tolist()  # type: ignore[union-attr]
