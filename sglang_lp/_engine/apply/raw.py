"""The model's own logprobs of tokens whose logits were edited, for requests that ask for them.

SGLang's logprobs are those of the edited logits. What lies between them and the model's own is one
number of each row: for a row that only loses tokens, how much smaller the sum over its tokens
became; for one that is forced, the token's own logprob. Only a row whose logits change in another
way is kept until its token is known.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from weakref import WeakSet

from sglang_lp._engine.apply.device import send

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.row import Row
    from sglang_lp._engine.step import Step
    from sglang_lp.edits.recording import Recording

__all__ = ["RawLogprobs", "RawRows", "take_raw"]

_LEAST = -3.4028234663852886e38


class RawLogprobs:
    """Those of one request, as its tokens come.

    Attributes:
        positions: Of tokens whose logits were edited, ascending.
        logprobs: Of these tokens, at least the least 32-bit float.
    """

    __slots__ = ("__weakref__", "logprobs", "positions")

    #: Those that are asked for in this process.
    asked: ClassVar[WeakSet[RawLogprobs]] = WeakSet()

    def __init__(self) -> None:
        self.positions = array("q")
        self.logprobs = array("d")
        self.asked.add(self)

    def add(self, position: int, logprobs: Sequence[float]) -> None:
        """Take down those of tokens that follow each other; NaN where nothing was edited."""
        for offset, logprob in enumerate(logprobs):
            if logprob == logprob:  # noqa: PLR0124 - not NaN
                self.positions.append(position + offset)
                self.logprobs.append(max(logprob, _LEAST))


class _Places(NamedTuple):
    """Rows of the logits by what becomes of them.

    Attributes:
        forced: Those that one token is forced in, which is the number beside.
        reduced: Those that lose tokens.
        changed: All others.
    """

    forced: list[tuple[int, int]]
    reduced: list[int]
    changed: list[int]

    @property
    def total(self) -> int:
        """How many they are."""
        return len(self.forced) + len(self.reduced) + len(self.changed)


def take_raw(step: Step, temperatures: torch.Tensor | None) -> RawRows | None:
    """Take down what the model says in the rows that are about to be edited.

    Args:
        step: What its rows want.
        temperatures: As for ``Batch.step``.

    Returns:
        It, or ``None`` if no request asks or none of those is edited.
    """
    if not RawLogprobs.asked:
        return None
    places = _Places([], [], [])
    requests: dict[int, Row] = {}
    edits = dict(step.acting)
    changed = {index for index, _ in step.copied} | step.dense.keys()
    changed |= {index for turn in step.pools for index, _, _ in turn}
    for request, row in enumerate(step.rows):
        if row is None or row.host.raw is None:
            continue
        before = places.total
        for index in range(request * step.width, (request + 1) * step.width):
            _place(places, index, row, edits.get(index), is_changed=index in changed)
        if places.total > before:
            requests[request] = row
    return RawRows(step, requests, places, temperatures) if requests else None


def _place(
    places: _Places, index: int, row: Row, recording: Recording | None, *, is_changed: bool
) -> None:
    standing = row.standing
    forced = None if standing is None else standing.forced
    if forced is None and recording is not None:
        forced = recording.forced
    if forced is not None:
        places.forced.append((index, forced))
    elif (
        is_changed
        or (recording is not None and (recording.biased or recording.conditional))
        or (standing is not None and len(standing.biases[0]))
    ):
        places.changed.append(index)
    elif recording is not None or standing is not None:
        places.reduced.append(index)


class RawRows:
    """What the model says in the rows of a step that are edited.

    Attributes:
        requests: Those that ask and are edited, by their index in the batch.
    """

    def __init__(
        self,
        step: Step,
        requests: Mapping[int, Row],
        places: _Places,
        temperatures: torch.Tensor | None,
    ) -> None:
        import torch

        forced, reduced, changed = places
        self.requests = requests
        tokens = [token_id for _, token_id in forced]
        indices = [*(index for index, _ in forced), *reduced, *changed]
        sent = send(torch.tensor([*indices, *tokens]), step.logits.device)
        #: Of the rows, first the forced ones, then the reduced ones.
        self._indices = sent[: len(indices)]
        self._reduced = slice(len(forced), len(forced) + len(reduced))
        self._temperatures = temperatures
        if temperatures is not None:
            of = self._indices if step.width == 1 else self._indices // step.width
            self._temperatures = temperatures.index_select(0, of)
        scaled = self._scaled(step.logits, slice(None))
        #: What SGLang's logprob lacks: of the changed ones, what the token's logit does.
        self._missing = -scaled.logsumexp(-1)
        if forced:
            own = scaled[: len(forced)].gather(1, sent[len(indices) :, None])
            self._missing[: len(forced)] += own[:, 0]
        self._kept = scaled[self._reduced.stop :].clone() if changed else None
        self._count = len(step.logits)

    def _scaled(self, logits: torch.Tensor, which: slice) -> torch.Tensor:
        """Return a copy of rows at their temperatures."""
        rows = logits.index_select(0, self._indices[which]).float()
        return rows if self._temperatures is None else rows.div_(self._temperatures[which])

    def compared_with(self, logits: torch.Tensor) -> RawRows:
        """See what the edits have left of the rows, and return this."""
        if self._reduced.start < self._reduced.stop:
            left = self._scaled(logits, self._reduced).logsumexp(-1)
            self._missing[self._reduced] += left
        return self

    def logprobs(
        self, logprobs: torch.Tensor, token_ids: torch.Tensor, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the model's own logprobs of tokens that were sampled; NaN in unedited rows.

        Args:
            logprobs: What SGLang says of these tokens.
            token_ids: For each row of the logits the token that was sampled there.
            places: For each of ``logprobs`` the row of the logits; ``None`` if they are in order.
        """
        own = self._spread(self._missing, self._indices)
        own = logprobs + (own if places is None else own[places]).view(logprobs.shape)
        if self._kept is None:
            return own
        rows = self._indices[self._reduced.stop :]
        chosen = token_ids.index_select(0, rows).long()
        logits = self._kept.gather(1, chosen[:, None])[:, 0]
        kept = self._spread(logits + self._missing[self._reduced.stop :], rows)
        kept = (kept if places is None else kept[places]).view(logprobs.shape)
        return own.where(kept.isnan(), kept)

    def _spread(self, numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return one number for each row of the logits, NaN for all others."""
        return numbers.new_full((self._count,), float("nan")).index_copy_(0, rows, numbers)
