"""Raw logprobs: the model's own logprobs of edited tokens, for requests that ask for them.

SGLang's logprobs are those of the edited logits. One number for each row leads from them to the raw
ones:

- a row that only loses tokens: by how much the logarithm of the sum over its tokens fell;
- a row with a forced token: the raw logprob of that token.

A row that changes in another way is copied, until its token is known.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakSet

from sglang_lp._engine.apply.device import send

if TYPE_CHECKING:
    import torch

#: The smallest 32-bit float: JSON has no infinity.
_LEAST = -3.4028234663852886e38


class RawLogprobs:
    """The raw logprobs of one request, as its tokens come.

    Attributes:
        positions: Positions of tokens whose logits were edited, ascending.
        logprobs: Raw logprobs of these tokens, at least the smallest 32-bit float.
    """

    __slots__ = ("__weakref__", "logprobs", "positions")

    #: Instances in use: without one, no step computes raw logprobs.
    asked: ClassVar[WeakSet[RawLogprobs]] = WeakSet()

    def __init__(self) -> None:
        self.positions = array("q")
        self.logprobs = array("d")
        self.asked.add(self)

    def add(self, position: int, logprobs: Sequence[float]) -> None:
        """Add the logprobs of consecutive tokens; NaN where nothing was edited."""
        for offset, logprob in enumerate(logprobs):
            if logprob == logprob:  # noqa: PLR0124 - not NaN
                self.positions.append(position + offset)
                self.logprobs.append(max(logprob, _LEAST))


class RawPlaces(NamedTuple):
    """Rows of the logits by the kind of their edits.

    Attributes:
        forced: Rows with a forced token, and the token.
        reduced: Rows that only lose tokens.
        changed: All other edited rows.
    """

    forced: list[tuple[int, int]]
    reduced: list[int]
    changed: list[int]

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self.forced) + len(self.reduced) + len(self.changed)


class RawRows:
    """The raw logprobs of the edited rows of one step, on the device.

    Args:
        logits: Shape ``(requests * width, vocab)``, before any edit.
        width: Rows of each request.
        requests: As the attribute.
        places: The edited rows.
        temperatures: As for :meth:`~sglang_lp._engine.batch.Batch.step`.

    Attributes:
        requests: The host's request object and its raw logprobs, by index in the batch.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        width: int,
        requests: Mapping[int, tuple[Any, RawLogprobs]],
        places: RawPlaces,
        temperatures: torch.Tensor | None,
    ) -> None:
        import torch

        forced, reduced, changed = places
        self.requests = requests
        tokens = [token_id for _, token_id in forced]
        indices = [*(index for index, _ in forced), *reduced, *changed]
        sent = send(torch.tensor([*indices, *tokens]), logits.device)
        #: Rows of the logits: the forced ones, the reduced ones, the changed ones.
        self._indices = sent[: len(indices)]
        self._reduced = slice(len(forced), len(forced) + len(reduced))
        self._temperatures = temperatures
        if temperatures is not None:
            of = self._indices if width == 1 else self._indices // width
            self._temperatures = temperatures.index_select(0, of)
        scaled = self._scaled(logits, slice(None))
        #: Raw logprob minus SGLang's; in changed rows, minus the raw logit of the token.
        self._missing = -scaled.logsumexp(-1)
        if forced:
            own = scaled[: len(forced)].gather(1, sent[len(indices) :, None])
            self._missing[: len(forced)] += own[:, 0]
        self._kept = scaled[self._reduced.stop :].clone() if changed else None
        self._count = len(logits)

    def _scaled(self, logits: torch.Tensor, which: slice) -> torch.Tensor:
        """Return a copy of rows at their temperatures."""
        rows = logits.index_select(0, self._indices[which]).float()
        return rows if self._temperatures is None else rows.div_(self._temperatures[which])

    def compared_with(self, logits: torch.Tensor) -> RawRows:
        """Add what the edited logits contribute, and return this object."""
        if self._reduced.start < self._reduced.stop:
            left = self._scaled(logits, self._reduced).logsumexp(-1)
            self._missing[self._reduced] += left
        return self

    def logprobs(
        self, logprobs: torch.Tensor, token_ids: torch.Tensor, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the raw logprobs of sampled tokens; NaN in unedited rows.

        Args:
            logprobs: SGLang's logprobs of these tokens.
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
        """Scatter numbers of some rows over all rows of the logits; the rest is NaN."""
        return numbers.new_full((self._count,), float("nan")).index_copy_(0, rows, numbers)
