"""The edits of a whole batch as one set of tensor operations.

However many rows are edited, applying costs one host-to-device copy and at most six tensor
operations, in place, without waiting for the device. Only edits that hold and name thousands of
tokens cost operations of their own: one or two for each run of rows that share them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence, Sized
from functools import lru_cache
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from sglang_lp._engine.ids import LONG, Ids, tensor_of
from sglang_lp._engine.recording import Recording
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch


__all__ = ["Cells", "Plan", "Standing", "place", "place_standing", "pool", "prepare"]

_MINUS_INF = -math.inf

_Mark = TypeVar("_Mark")

#: So many cells of a row and more are written by going through the whole row, which takes as long
#: as this many writes.
DENSE = 4_096


class _Part:
    """Flat indices into the logits, or as many values of 64 bits."""

    __slots__ = ("_in_long", "long", "short")

    def __init__(self) -> None:
        self.short = array("q")
        self._in_long = 0
        #: Long lists, each with the indices at which the rows begin that it is for.
        self.long: list[tuple[torch.Tensor, list[int]]] = []

    def extend(self, ids: Ids | Sequence[int] | torch.Tensor, base: int) -> None:
        if isinstance(ids, list):
            self.short.extend([base + i for i in ids])
            return
        tensor: Any = ids.tensor if isinstance(ids, Ids) else ids
        self._in_long += len(ids)
        if self.long and self.long[-1][0] is tensor:
            self.long[-1][1].append(base)
        else:
            self.long.append((tensor, [base]))

    def __len__(self) -> int:
        return len(self.short) + self._in_long


class Cells:
    """What happens where: the edits of several rows, still on the host.

    Attributes:
        stride: Distance between rows in the flat logits.
        shut: Rows with edits that are written by going through the whole row.
        fill: Rows that become ``-inf``.
        keep: Cells of these rows that stay as they are.
        bias: Cells that are biased, each once, and ``values`` the bits of their biases.
        ban: Cells that become ``-inf``.
        force: Cells that become 0.0.
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
    """

    __slots__ = ("ban", "bias", "conflicts", "fill", "force", "keep", "shut", "stride", "values")

    def __init__(self, logits: torch.Tensor) -> None:
        vocab = logits.shape[1]
        self.stride: int = logits.stride(0) if logits.stride(1) == 1 else vocab
        self.fill = array("q")
        self.keep = _Part()
        self.bias = _Part()
        self.values = _Part()
        self.shut: list[tuple[int, Standing]] = []
        self.ban = _Part()
        self.force = array("q")
        self.conflicts: dict[int, str] = {}

    def force_one(self, row: int, token_id: int, *, keep_masked: bool) -> None:
        """Leave one token in a row."""
        self.fill.append(row)
        cells = self.keep.short if keep_masked else self.force
        cells.append(row * self.stride + token_id)

    def add_biases(self, row: int, biases: _Biases) -> None:
        """Bias tokens of a row."""
        ids, values = biases
        if not len(ids):
            return
        self.bias.extend(ids, row * self.stride)
        if isinstance(values, array):
            self.values.short.frombytes(values.tobytes())
        else:
            self.values.extend(values, 0)


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
            *(tuple(map(_identity, lists)) for lists in (recording.banned, recording.allowed)),
            *((_identity(ids), _bits(values)) for ids, values in recording.biased),
        )
        found = cls._shared.get(key)
        if found is None:
            found = cls._shared[key] = cls(recording)
        return found

    def __init__(self, recording: Recording) -> None:
        if recording.pooled:
            raise ProcessorFault("pool() is for one step; declare it anew at each")
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
        self.biases: _Biases = ([], array("d"))
        self.dense = False
        self.conflict = _clash(recording)
        if self.conflict is not None or self.forced is not None:
            return
        if recording.allowed:
            self.allowed = allowed = _allowed(recording)
            self.banned = ()
            self.dense = len(allowed) >= DENSE
            if not len(allowed):
                self.conflict = _NONE_ALLOWED
        else:
            self.dense = sum(map(len, self.banned)) >= DENSE
            if _all_banned(self.banned, recording.vocab_size):
                self.conflict = _ALL_BANNED
        self.biases = _biases(recording)

    @property
    def open(self) -> bytearray:
        """For each token of the vocabulary whether it is left."""
        if self._open is None:
            if self.forced is not None:
                self._open = _mask(self._vocab_size, [[self.forced]], ())
            elif self.allowed is not None:
                self._open = _mask(self._vocab_size, [self.allowed], ())
            else:
                self._open = _mask(self._vocab_size, (), self.banned)
        return self._open

    @property
    def left(self) -> int:
        """How many tokens are left."""
        if self._left < 0:
            self._left = _count(self.open)
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
            found = self._beside[other] = _count(_both(self.open, other.open))
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
            return (_sent(left == 0, device),)
        kind = _INTEGERS[dtype.itemsize]
        minus_inf = int(torch.tensor(_MINUS_INF, dtype=dtype).view(getattr(torch, kind)))
        keep = np.negative(np.frombuffer(self.open, dtype=np.int8), dtype=kind)
        others = np.invert(keep)
        others &= minus_inf
        return torch.from_numpy(keep), torch.from_numpy(others)


#: Device and type of the logits that were last gone through: a server's never change.
_latest: tuple[torch.device, torch.dtype] | None = None

#: Types of integers by their size in bytes.
_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}


def _identity(ids: Ids | list[int]) -> object:
    return ids if isinstance(ids, Ids) else tuple(ids)


def _bits(values: array[float] | float) -> bytes | float:
    return values if isinstance(values, float) else values.tobytes()


def _listed(ids: Sequence[int] | torch.Tensor) -> list[int]:
    return ids if isinstance(ids, list) else ids.tolist()  # type: ignore[union-attr]


def _mask(
    vocab_size: int,
    allowed: Iterable[Ids | Sequence[int] | torch.Tensor],
    banned: Iterable[Ids | Sequence[int]],
    before: bytearray | None = None,
) -> bytearray:
    """Return for each token whether it was left before, all lists allow it, and none bans it."""
    import numpy as np

    left = bytearray(b"\x01") * vocab_size if before is None else bytearray(before)
    view = np.frombuffer(left, dtype=np.uint8)  # which numpy writes in a third of torch's time
    for ids in allowed:
        one = np.zeros(vocab_size, dtype=np.uint8)
        one[tensor_of(ids).numpy()] = 1
        view &= one
    for ids in banned:
        view[tensor_of(ids).numpy()] = 0
    return left


def _both(one: bytearray, other: bytearray) -> bytearray:
    import numpy as np

    both = np.frombuffer(one, dtype=np.uint8) & np.frombuffer(other, dtype=np.uint8)
    return bytearray(both)


def _count(left: bytearray) -> int:
    """Return how many tokens are left; bytearray.count() takes far longer."""
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(left, dtype=np.bool_)))


def place(
    cells: Cells, row: int, recording: Recording, standing: Standing | None, *, keep_masked: bool
) -> Standing | None:
    """Add the edits of one step of a row.

    Args:
        cells: Takes them.
        row: Row of the logits.
        recording: The edits.
        standing: The edits of the row that hold at every step, which are applied before.
        keep_masked: Whether a forced token keeps its logit instead of getting 0.0, so that a
            token that a grammar masked stays masked.

    Returns:
        What the edits were put together to, if that is worth to be kept until the next step.
    """
    conflict: str | None = None
    if recording.banned or recording.allowed or recording.clash or standing is not None:
        conflict = _clash(recording) or _clash_with(standing, recording)
    whole: Standing | None = None
    if conflict is not None or (standing is not None and standing.forced is not None):
        pass
    elif recording.forced is not None:
        cells.force_one(row, recording.forced, keep_masked=keep_masked)
    else:
        whole, banned = _parted(recording)
        if whole is not None:
            conflict = _shut(cells, row, whole, banned, standing)
        else:
            conflict = _pick(cells, row, recording, standing)
        if conflict is None and recording.biased:
            cells.add_biases(row, _biases(recording, standing))
    if conflict is not None:
        cells.conflicts[row] = conflict
    return whole


def _parted(recording: Recording) -> tuple[Standing | None, Sequence[Ids | list[int]]]:
    """Part what comes again at other steps, if that is much, from what is banned now."""
    again = [ids for ids in recording.banned if isinstance(ids, Ids) and ids.lasts]
    many = recording.allowed or again
    if sum(map(len, many)) < DENSE or not all(isinstance(i, Ids) and i.lasts for i in many):
        return None, ()  # what comes once takes longer to put together than to write
    one = Recording(recording.vocab_size)
    one.allowed, one.banned = recording.allowed, again
    return Standing.of(one), [ids for ids in recording.banned if ids not in again]


def prepare(recording: Recording) -> None:
    """Put together what a step with these edits would put together, before it begins.

    Args:
        recording: Keeps what was put together, for who needs the same while it lives.
    """
    standing = None
    for lasting in (recording.standing, recording if recording.holds else None):
        if lasting is not None and not lasting.is_empty:
            standing = Standing.of(lasting)
            if standing.dense:
                standing.prepare()
            recording.prepared = (*recording.prepared, standing)
    whole, _ = _parted(recording)
    if whole is not None:
        whole.prepare()
        whole.left_beside(standing)
        recording.prepared = (*recording.prepared, whole)
    if recording.biased and not recording.holds:
        _biases(recording)  # which keeps the sums
    for ids, _ in recording.pooled:
        _once(ids)


def _shut(
    cells: Cells,
    row: int,
    whole: Standing,
    banned: Sequence[Ids | list[int]],
    standing: Standing | None,
) -> str | None:
    """Shut tokens by going through a row, and some more; return why none is left."""
    more = sum(map(len, banned))
    if standing is not None or whole.at_least <= more:
        left = whole.left_beside(standing)
        if left and more >= left:
            before = whole.open if standing is None else _both(whole.open, standing.open)
            left = _count(_mask(len(before), (), banned, before))
        if not left:
            return _ALL_BANNED if whole.allowed is None else _NONE_ALLOWED
    cells.shut.append((row, whole))
    for ids in banned:
        cells.ban.extend(ids, row * cells.stride)
    return None


def _pick(cells: Cells, row: int, recording: Recording, standing: Standing | None) -> str | None:
    """Shut tokens of a row one by one, or all but some; return why none is left."""
    base = row * cells.stride
    if recording.allowed:
        allowed = _allowed(recording, standing)
        if not len(allowed):
            return _NONE_ALLOWED
        cells.fill.append(row)
        cells.keep.extend(allowed, base)
    elif _all_banned(recording.banned, recording.vocab_size, standing):
        return _ALL_BANNED
    else:
        for ids in recording.banned:
            cells.ban.extend(ids, base)
    return None


_NONE_ALLOWED, _ALL_BANNED = "no allowed token is left", "every token is banned"


def place_standing(cells: Cells, row: int, standing: Standing, *, keep_masked: bool) -> None:
    """Add the edits of a row that hold at every step; arguments as for :func:`place`."""
    if standing.conflict is not None:
        cells.conflicts[row] = standing.conflict
        return
    if standing.forced is not None:
        cells.force_one(row, standing.forced, keep_masked=keep_masked)
        return
    base = row * cells.stride
    if standing.dense:
        cells.shut.append((row, standing))
    elif standing.allowed is not None:
        cells.fill.append(row)
        cells.keep.extend(standing.allowed, base)
    else:
        for ids in standing.banned:
            cells.ban.extend(ids, base)
    cells.add_biases(row, standing.biases)


def _clash(recording: Recording) -> str | None:
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


def _clash_with(standing: Standing | None, recording: Recording) -> str | None:
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
    return _clash(both)


def _allowed(
    recording: Recording, standing: Standing | None = None
) -> Ids | list[int] | torch.Tensor:
    """Return what all lists of allowed tokens hold, bans taken away."""
    first, *others = recording.allowed
    if not (others or recording.banned or standing):
        return first
    if any(isinstance(ids, Ids) for ids in (first, *others, *recording.banned)):
        import torch

        before = None if standing is None else standing.open
        left = _mask(recording.vocab_size, recording.allowed, recording.banned, before)
        return torch.frombuffer(left, dtype=torch.uint8).nonzero().view(-1)
    wanted = {*first}.intersection(*others).difference(*recording.banned)
    return [i for i in first if i in wanted and (standing is None or standing.permits(i))]


def _all_banned(
    banned: Sequence[Ids | list[int]], vocab_size: int, standing: Standing | None = None
) -> bool:
    if not banned:
        return False
    left = vocab_size if standing is None else standing.left
    if sum(map(len, banned)) < left:
        return False  # the usual case, at the price of one addition per list
    if any(isinstance(ids, Ids) for ids in banned):
        return 1 not in _mask(vocab_size, (), banned, None if standing is None else standing.open)
    out = {i for ids in banned for i in ids if standing is None or standing.permits(i)}
    return len(out) == left


#: Ids, each once, and the bias of each: few of them in an array, many in a tensor of float64.
_Biases: TypeAlias = "tuple[list[int] | torch.Tensor, array[float] | torch.Tensor]"


def _biases(recording: Recording, standing: Standing | None = None) -> _Biases:
    """Return the bias of each id.

    Summed here and not by the device, whose order of additions is not fixed and whose float16
    ends at 65,504.
    """
    if sum(len(ids) for ids, _ in recording.biased) >= LONG:
        return _many_biases(recording, standing)
    biases: dict[int, float] = {}
    for ids, values in recording.biased:
        each = repeat(values, len(ids)) if isinstance(values, float) else values
        for i, value in zip(ids, each, strict=True):
            biases[i] = biases.get(i, 0.0) + value
    for i, value in biases.items():
        had = 0.0 if standing is None else standing.bias_of(i)
        biases[i] = max(-MAX_BIAS, min(MAX_BIAS, had + value)) - had
    return [*biases], array("d", biases.values())


def _many_biases(recording: Recording, standing: Standing | None) -> _Biases:
    lists = tuple(ids if isinstance(ids, Ids) else Ids(ids) for ids, _ in recording.biased)
    values = tuple(_bits(values) for _, values in recording.biased)
    known = all(ids.lasts for ids in lists)
    ids, sums, cut = (_summed if known else _summed.__wrapped__)(lists, values)
    if standing is None or not len(standing.biases[0]):
        return ids, cut
    import torch

    had = torch.tensor([standing.bias_of(i) for i in ids.tolist()], dtype=torch.float64)
    return ids, (had + sums).clamp_(-MAX_BIAS, MAX_BIAS) - had


@lru_cache(maxsize=16)  # copies of a request bias the same ids by the same values
def _summed(
    lists: tuple[Ids, ...], values: tuple[bytes | float, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the ids of several lists, each once; the sums of their values; and these cut."""
    import torch

    known = all(ids.lasts for ids in lists)
    ids, places = (_merged if known else _merged.__wrapped__)(lists)
    parts = [
        torch.full((len(ids),), own, dtype=torch.float64)
        if isinstance(own, float)
        else torch.frombuffer(bytearray(own), dtype=torch.float64)
        for ids, own in zip(lists, values, strict=True)
    ]
    sums = torch.cat(parts)
    if places is not None:  # bincount adds in the order of the lists, from 0.0 on
        sums = places.bincount(sums)
    return ids, sums, sums.clamp(-MAX_BIAS, MAX_BIAS)


@lru_cache(maxsize=16)  # a schedule biases the same ids at every step
def _merged(lists: tuple[Ids, ...]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the ids of several lists, each once; and for each of the lists' ids its place.

    For one list in ascending order that is the list itself, and no places.
    """
    import torch

    ids = lists[0].tensor if len(lists) == 1 else torch.cat([ids.tensor for ids in lists])
    if bool((ids[1:] > ids[:-1]).all()):
        return ids, None
    ids, places = torch.unique(ids, return_inverse=True)
    return ids, places


def pool(logits: torch.Tensor, pools: Sequence[Sequence[tuple[int, Ids | list[int], int]]]) -> None:
    """Give tokens the probability of others, in place.

    Args:
        logits: Shape ``(rows, vocab)``.
        pools: What is done one after the other: for rows of the logits the ids, and the token
            that gets their probability. Each row is in one of these at most once.
    """
    import torch

    for one in pools:
        alike: dict[object, list[tuple[int, Ids | list[int], int]]] = {}
        for entry in one:
            alike.setdefault(_identity(entry[1]), []).append(entry)
        for entries in alike.values():
            ids = _once(entries[0][1])
            if len(entries) == 1 and logits.is_cpu:  # as for a chain of triggers; in less time
                ((index, _, token_id),) = entries
                row = logits[index]
                row[token_id] = row.index_select(0, ids).float().logsumexp(0).to(logits.dtype)
                row.index_fill_(0, ids, _MINUS_INF)
                continue
            rows = torch.tensor([row for row, _, _ in entries])
            into = torch.tensor([token_id for _, _, token_id in entries])
            if logits.is_cuda:
                parts = [len(ids), len(rows), len(into)]
                sent = _sent(torch.cat((ids, rows, into)), logits.device)
                ids, rows, into = torch.split(sent, parts)
            where = rows[:, None], ids
            logits[rows, into] = logits[where].float().logsumexp(1).to(logits.dtype)
            logits[where] = _MINUS_INF


def _once(ids: Ids | list[int]) -> torch.Tensor:
    """Return a list of ids, each once."""
    import torch

    if isinstance(ids, Ids) and ids.lasts:
        found, _ = _merged((ids,))
        return found
    once: torch.Tensor = torch.unique(tensor_of(ids))
    return once


class Plan:
    """Edits as index tensors, ready to be applied, more than once if need be.

    Attributes:
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
    """

    __slots__ = (
        "_ban",
        "_bias",
        "_bias_values",
        "_fill",
        "_fill_runs",
        "_force",
        "_keep",
        "_shut",
        "conflicts",
    )

    def __init__(self, cells: Cells, logits: torch.Tensor) -> None:
        """Send the edits to the device of ``logits``, whose layout they are for."""
        import torch

        self.conflicts = cells.conflicts
        self._shut = _runs(cells.shut)
        self._fill_runs = [run for run, _ in _runs((row, None) for row in cells.fill)]
        # Rows that follow each other are filled as one, in less time than rows that are looked up.
        by_runs = logits.is_cpu or len(self._fill_runs) == 1
        fill = array("q") if by_runs else cells.fill
        parts: tuple[array[int] | _Part, ...] = (
            fill,
            cells.keep,
            cells.bias,
            cells.ban,
            cells.force,
            cells.values,  # 64-bit floats ride along as integers
        )
        ends = [*accumulate(len(part) for part in parts)]
        sent: torch.Tensor | None = None
        if ends[-1]:
            sent = _packed(parts, ends[-1])
            sent = _sent(sent, logits.device)

        def cut(part: Sized, end: int) -> torch.Tensor | None:
            # Each operation of torch costs microseconds, so none without need.
            if sent is None or not len(part):
                return None
            return sent if len(part) == ends[-1] else sent[end - len(part) : end]

        self._fill, self._keep, self._bias, self._ban, self._force, bits = (
            cut(part, end) for part, end in zip(parts, ends, strict=True)
        )
        self._bias_values = None if bits is None else bits.view(torch.float64).to(logits.dtype)

    def apply(self, logits: torch.Tensor) -> None:
        """Edit ``logits`` in place: shape ``(rows, vocab)``, laid out as the plan was made for."""
        import torch

        flat = _flat(logits)
        if flat is None:  # columns are not adjacent in memory: no one flat index
            # Not contiguous(), which takes the strides of a single column as they are.
            work = logits.clone(memory_format=torch.contiguous_format)
            self.apply(work)
            logits.copy_(work)
            return
        for rows, standing in self._shut:
            standing.shut(logits[rows])
        kept = None if self._keep is None else flat.index_select(0, self._keep)
        if self._fill is not None:
            logits.index_fill_(0, self._fill, _MINUS_INF)
        else:
            for run in self._fill_runs:
                logits[run].fill_(_MINUS_INF)
        if self._keep is not None and kept is not None:
            flat.index_copy_(0, self._keep, kept)
        if self._bias is not None and self._bias_values is not None:
            flat.index_add_(0, self._bias, self._bias_values)
        if self._ban is not None:
            if flat.is_cpu:  # in less time than index_fill_ takes there
                flat[self._ban] = _MINUS_INF
            else:
                flat.index_fill_(0, self._ban, _MINUS_INF)
        if self._force is not None:
            flat.index_fill_(0, self._force, 0.0)


def _runs(rows: Iterable[tuple[int, _Mark]]) -> list[tuple[slice, _Mark]]:
    """Put rows that follow each other and have the same mark together."""
    runs: list[tuple[slice, _Mark]] = []
    for row, mark in rows:
        if runs and runs[-1][0].stop == row and runs[-1][1] is mark:
            runs[-1] = slice(runs[-1][0].start, row + 1), mark
        else:
            runs.append((slice(row, row + 1), mark))
    return runs


def _packed(parts: Sequence[array[int] | _Part], length: int) -> torch.Tensor:
    """Return all indices one after the other."""
    import torch

    if not any(isinstance(part, _Part) and part.long for part in parts):
        packed = array("q")
        for part in parts:
            packed.extend(part.short if isinstance(part, _Part) else part)
        return torch.frombuffer(packed, dtype=torch.int64)
    import numpy as np  # torch takes longer for each list, and there may be hundreds

    sent = np.empty(length, dtype=np.int64)
    at = 0
    for part in parts:
        short, long = (part.short, part.long) if isinstance(part, _Part) else (part, [])
        if short:
            sent[at : at + len(short)] = short
            at += len(short)
        for ids, bases in long:  # 64-bit floats ride along as integers
            indices = ids.numpy().view(np.int64)
            count = len(indices) * len(bases)
            out = sent[at : at + count].reshape(len(bases), -1)
            np.add(np.array(bases)[:, None], indices, out=out)
            at += count
    return torch.from_numpy(sent)


def _sent(indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return indices on the device of the logits, without waiting for it."""
    if device.type == "cuda":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices


def _flat(logits: torch.Tensor) -> torch.Tensor | None:
    """View ``logits`` as one dimension in which row r, column c is ``r * stride(0) + c``."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        return None
    return logits.as_strided(((rows - 1) * logits.stride(0) + vocab,), (1,))
