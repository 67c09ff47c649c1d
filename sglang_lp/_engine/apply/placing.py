"""Where the edits of a batch go: cells of its logits, still on the host."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.deciding import Deciding
from sglang_lp._engine.compiled.biases import Biases, biases_of
from sglang_lp._engine.compiled.conflicts import (
    ALL_BANNED,
    NONE_ALLOWED,
    all_allowed,
    all_banned,
    clash,
    clash_with,
)
from sglang_lp._engine.compiled.masks import both, count, mask
from sglang_lp._engine.compiled.standing import DENSE, Standing
from sglang_lp.edits.ids import Ids, once
from sglang_lp.edits.recording import Recording

if TYPE_CHECKING:
    import torch

__all__ = ["Cells", "Part", "place", "place_standing", "prepare"]


class Part:
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
        deciding: Rows in which the device decides whether a token is forced.
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
    """

    __slots__ = (
        *("ban", "bias", "conflicts", "deciding", "fill", "force", "keep", "shut", "stride"),
        "values",
    )

    def __init__(self, logits: torch.Tensor) -> None:
        vocab = logits.shape[1]
        self.stride: int = logits.stride(0) if logits.stride(1) == 1 else vocab
        self.fill = array("q")
        self.keep = Part()
        self.bias = Part()
        self.values = Part()
        self.shut: list[tuple[int, Standing]] = []
        self.ban = Part()
        self.force = array("q")
        self.deciding = Deciding(len(logits), self.stride)
        self.conflicts: dict[int, str] = {}

    def force_one(self, row: int, token_id: int, *, keep_masked: bool) -> None:
        """Leave one token in a row."""
        self.fill.append(row)
        cells = self.keep.short if keep_masked else self.force
        cells.append(row * self.stride + token_id)

    def add_biases(self, row: int, biases: Biases) -> None:
        """Bias tokens of a row."""
        ids, values = biases
        if not len(ids):
            return
        self.bias.extend(ids, row * self.stride)
        if isinstance(values, array):
            self.values.short.frombytes(values.tobytes())
        else:
            self.values.extend(values, 0)


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
    forced = recording.forced
    if standing is not None or (
        forced is not None and (recording.banned or recording.allowed or recording.clash)
    ):
        conflict = clash(recording) or clash_with(standing, recording)
    whole: Standing | None = None
    if conflict is not None or (standing is not None and standing.forced is not None):
        pass
    elif forced is not None:
        cells.force_one(row, forced, keep_masked=keep_masked)
    else:
        whole, banned = _parted(recording)
        if whole is not None:
            conflict = _shut(cells, row, whole, banned, standing)
        else:
            conflict = _pick(cells, row, recording, standing)
        if conflict is None and recording.biased:
            cells.add_biases(row, biases_of(recording, standing))
        if conflict is None and recording.conditional:
            cells.deciding.ask(row, recording, keep_masked=keep_masked)
    if conflict is not None:
        cells.conflicts[row] = conflict
    return whole


def _parted(recording: Recording) -> tuple[Standing | None, Sequence[Ids | list[int]]]:
    """Part what comes again at other steps, if that is much, from what is banned now."""
    if sum(map(len, recording.allowed or recording.banned)) < DENSE:
        return None, ()  # nearly always
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
        biases_of(recording)  # which keeps the sums
    for ids, _ in recording.pooled:
        once(ids)


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
            before = whole.open if standing is None else both(whole.open, standing.open)
            left = count(mask(len(before), (), banned, before))
        if not left:
            return ALL_BANNED if whole.allowed is None else NONE_ALLOWED
    cells.shut.append((row, whole))
    for ids in banned:
        cells.ban.extend(ids, row * cells.stride)
    return None


def _pick(cells: Cells, row: int, recording: Recording, standing: Standing | None) -> str | None:
    """Shut tokens of a row one by one, or all but some; return why none is left."""
    base = row * cells.stride
    if recording.allowed:
        allowed = all_allowed(recording, standing)
        if not len(allowed):
            return NONE_ALLOWED
        cells.fill.append(row)
        cells.keep.extend(allowed, base)
    elif all_banned(recording.banned, recording.vocab_size, standing):
        return ALL_BANNED
    else:
        for ids in recording.banned:
            cells.ban.extend(ids, base)
    return None


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
