"""The plan of a batch while it is built on the host: which logits each edit writes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply import cpu
from sglang_lp._engine.apply.deciding import DeviceQuestions
from sglang_lp._engine.compiled.biases import Biases, biases_of
from sglang_lp._engine.compiled.conflicts import (
    ALL_BANNED,
    NONE_ALLOWED,
    allowed_ids,
    bans_all,
    forced_conflict,
)
from sglang_lp._engine.compiled.edits import WIDE, CompiledEdits
from sglang_lp._engine.compiled.masks import count_ones, intersection, mask_bytes
from sglang_lp.edits.ids import Ids, once
from sglang_lp.edits.recording import Recording

if TYPE_CHECKING:
    import torch

    from sglang_lp.forms.out import Out
    from sglang_lp.watermark.marks import Mark, Scheme


class Indices:
    """Indices into the flat logits, or as many values of 64 bits.

    Attributes:
        short: Indices of short lists.
        long: Long lists of ids, each with the first index of every row that it is for.
    """

    __slots__ = ("_in_long", "long", "short")

    def __init__(self) -> None:
        self.short = array("q")
        self._in_long = 0
        self.long: list[tuple[torch.Tensor, list[int]]] = []

    def extend(self, ids: Ids | Sequence[int] | torch.Tensor, base: int) -> None:
        """Add the ids of one row.

        Args:
            ids: Token ids, or values in a tensor.
            base: First index of the row.
        """
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


class PlanBuilder:
    """Collects the edits of several rows for one :class:`~sglang_lp._engine.apply.plan.Plan`.

    Args:
        logits: Shape ``(rows, vocab)``, for their layout.

    Attributes:
        rows: Number of rows of the logits.
        stride: Distance between rows in the flat logits.
        masked: Rows with wide edits, which are applied as a mask of the whole row.
        fill: Rows that become ``-inf``.
        keep: Logits of these rows that stay as they are.
        bias: Logits that are biased, each once.
        values: Bits of their biases.
        ban: Logits that become ``-inf``.
        force: Logits that become 0.0.
        factors: The factor of each row whose logits are all multiplied.
        near_top: Rows that keep only logits near their largest.
        sigmas: How near, in standard deviations.
        marks: For each watermark, the rows that it marks, each with its mark.
        decisions: Rows in which the device decides whether a token is forced.
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
    """

    __slots__ = (
        *("ban", "bias", "conflicts", "decisions", "fill", "force", "keep", "marks", "masked"),
        *("factors", "near_top", "rows", "sigmas", "stride", "values"),
    )

    def __init__(self, logits: torch.Tensor) -> None:
        vocab = logits.shape[1]
        self.rows = len(logits)
        self.stride: int = logits.stride(0) if logits.stride(1) == 1 else vocab
        self.fill = array("q")
        self.keep = Indices()
        self.bias = Indices()
        self.values = Indices()
        self.masked: list[tuple[int, CompiledEdits]] = []
        self.ban = Indices()
        self.force = array("q")
        self.factors: dict[int, float] = {}
        self.near_top = array("q")
        self.sigmas = array("d")
        self.marks: dict[Scheme, list[tuple[int, Mark]]] = {}
        self.decisions = DeviceQuestions(self.rows, self.stride)
        self.conflicts: dict[int, str] = {}

    def add_persistent(self, row: int, edits: CompiledEdits, *, has_grammar: bool) -> None:
        """Add the persistent edits of a row; arguments as for :meth:`add_step`."""
        if edits.conflict is not None:
            self.conflicts[row] = edits.conflict
            return
        if edits.forced is not None:
            self._force(row, edits.forced, has_grammar=has_grammar)
            return
        base = row * self.stride
        if edits.is_wide:
            self.masked.append((row, edits))
        elif edits.allowed is not None:
            self.fill.append(row)
            self.keep.extend(edits.allowed, base)
        else:
            for ids in edits.banned:
                self.ban.extend(ids, base)
        self._bias(row, edits.biases)
        self._finish(row, edits, edits.factor)

    def add_step(
        self, row: int, recording: Recording, persistent: CompiledEdits | None, *, has_grammar: bool
    ) -> CompiledEdits | None:
        """Add the step edits of a row.

        Args:
            row: Row of the logits.
            recording: The step edits.
            persistent: The persistent edits of the row, which are applied before.
            has_grammar: Whether a grammar has masked the row. A forced token then keeps its logit
                instead of getting 0.0, so that it stays masked if the grammar excludes it.

        Returns:
            Compiled edits to keep for the next step, or ``None`` if a new compilation is cheap.
        """
        conflict: str | None = None
        forced = recording.forced
        if persistent is not None or (
            forced is not None and (recording.banned or recording.allowed or recording.clash)
        ):
            conflict = forced_conflict(recording)
            if conflict is None and persistent is not None:
                conflict = persistent.conflict_with(recording)
        compiled: CompiledEdits | None = None
        if conflict is not None or (persistent is not None and persistent.forced is not None):
            pass
        elif forced is not None:
            self._force(row, forced, has_grammar=has_grammar)
        else:
            compiled, banned = _wide_part(recording)
            if compiled is not None:
                conflict = self._mask(row, compiled, banned, persistent)
            else:
                conflict = self._index(row, recording, persistent)
            if conflict is None and recording.biased:
                biased = None if persistent is None else persistent.bias_by_id
                self._bias(row, biases_of(recording, biased))
            if conflict is None:
                before = None if persistent is None else persistent.factor
                self._finish(row, recording, _factor_on(before, recording.factor))
                self._mark_with(row, recording.marked)
            if conflict is None and recording.conditional:
                self.decisions.add(row, recording, has_grammar=has_grammar)
        if conflict is not None:
            self.conflicts[row] = conflict
        return compiled

    def add_forms(self, out: Out) -> None:
        """Add the edits of rows that run by forms."""
        bans, biases, forced, asked, _ = out.counts.tolist()
        self.ban.short.frombytes(out.ban[:bans].tobytes())
        self.bias.short.frombytes(out.bias[:biases].tobytes())
        self.values.short.frombytes(out.values[:biases].tobytes())
        self.fill.frombytes(out.fill[:forced].tobytes())
        self.force.frombytes(out.force[:forced].tobytes())
        self.decisions.add_forms(out.asked[:asked], out.questions[:asked])

    def _force(self, row: int, token_id: int, *, has_grammar: bool) -> None:
        """Leave one token in a row."""
        self.fill.append(row)
        indices = self.keep.short if has_grammar else self.force
        indices.append(row * self.stride + token_id)

    def _bias(self, row: int, biases: Biases) -> None:
        """Bias tokens of a row."""
        ids, values = biases
        if not len(ids):
            return
        self.bias.extend(ids, row * self.stride)
        if isinstance(values, array):
            self.values.short.frombytes(values.tobytes())
        else:
            self.values.extend(values, 0)

    def _finish(self, row: int, edits: Recording | CompiledEdits, factor: float | None) -> None:
        """Add the edits of a row that come after all others."""
        if edits.sigmas is not None:
            self.near_top.append(row)
            self.sigmas.append(edits.sigmas)
        if factor is not None:
            self.factors[row] = factor

    def _mark_with(self, row: int, mark: Mark | None) -> None:
        """Watermark a row, if it has a mark."""
        if mark is not None:
            self.marks.setdefault(mark.scheme, []).append((row, mark))

    def _mask(
        self,
        row: int,
        compiled: CompiledEdits,
        banned: Sequence[Ids | list[int]],
        persistent: CompiledEdits | None,
    ) -> str | None:
        """Mask a whole row, and ban some more tokens; return why no token is left."""
        more = sum(map(len, banned))
        mask = compiled.mask
        if persistent is not None or mask.min_count <= more:
            left = mask.count_with(None if persistent is None else persistent.mask)
            if left and more >= left:
                before = mask.bytes
                if persistent is not None:
                    before = intersection(before, persistent.mask.bytes)
                left = count_ones(mask_bytes(len(before), (), banned, before))
            if not left:
                return ALL_BANNED if compiled.allowed is None else NONE_ALLOWED
        self.masked.append((row, compiled))
        for ids in banned:
            self.ban.extend(ids, row * self.stride)
        return None

    def _index(
        self, row: int, recording: Recording, persistent: CompiledEdits | None
    ) -> str | None:
        """Ban tokens of a row one by one, or keep the allowed ones; return why none is left."""
        base = row * self.stride
        before = None if persistent is None else persistent.mask
        if recording.allowed:
            allowed = allowed_ids(recording, before)
            if not len(allowed):
                return NONE_ALLOWED
            self.fill.append(row)
            self.keep.extend(allowed, base)
        elif bans_all(recording.banned, recording.vocab_size, before):
            return ALL_BANNED
        else:
            for ids in recording.banned:
                self.ban.extend(ids, base)
        return None


def _factor_on(before: float | None, factor: float | None) -> float | None:
    """Return the factor on top of an earlier one, so that the larger of the two counts."""
    return factor if before is None or factor is None else max(1.0, factor / before)


def precompile(recording: Recording) -> None:
    """Compile what a step with these edits would compile, before the step begins.

    Args:
        recording: Keeps the compiled edits, so that they stay shared while it lives.
    """
    persistent = None
    for edits in (recording.standing, recording if recording.holds else None):
        if edits is not None and not edits.is_empty:
            persistent = CompiledEdits.of(edits)
            if persistent.is_wide:
                _precompute_mask(persistent)
            recording.compiled = (*recording.compiled, persistent)
    compiled, _ = _wide_part(recording)
    if compiled is not None:
        _precompute_mask(compiled)
        compiled.mask.count_with(None if persistent is None else persistent.mask)
        recording.compiled = (*recording.compiled, compiled)
    if recording.biased and not recording.holds:
        biases_of(recording)  # which keeps the sums
    for ids, _ in recording.pooled:
        once(ids)


def _precompute_mask(edits: CompiledEdits) -> None:
    edits.mask.count  # noqa: B018 - which is kept
    cpu.precompute_mask(edits)  # on a GPU the step copies it without a wait


def _wide_part(
    recording: Recording,
) -> tuple[CompiledEdits | None, Sequence[Ids | list[int]]]:
    """Compile wide edits that come again at other steps; return them and the other bans."""
    if sum(map(len, recording.allowed or recording.banned)) < WIDE:
        return None, ()  # nearly always
    again = [ids for ids in recording.banned if isinstance(ids, Ids) and ids.is_lasting]
    many = recording.allowed or again
    if sum(map(len, many)) < WIDE or not all(isinstance(i, Ids) and i.is_lasting for i in many):
        return None, ()  # compiling pays off if the edits come again
    part = Recording(recording.vocab_size)
    part.allowed, part.banned = recording.allowed, again
    return CompiledEdits.of(part), [ids for ids in recording.banned if ids not in again]
