"""Reading rows of logits for processors whose edits depend on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.device import device_of
from sglang_lp.edits.ids import Ids, checked, tensor_of
from sglang_lp.edits.questions import Question
from sglang_lp.errors import ProcessorFault
from sglang_lp.request import Request

if TYPE_CHECKING:
    import torch

    from sglang_lp.params import Parameters
    from sglang_lp.request import Answer

#: So many of the largest logits of each row are copied to the host at once. Only what is read of
#: more of them, or of a tie that goes on beyond them, waits for the device by itself.
_MOST = 64


class Logits:
    """The logits of one step.

    On an accelerator the first row that is read fetches what is read of all of them, so that the
    host waits once. numpy reads the others where it can, in a quarter of torch's time
    (``make bench PART=bounds``).

    Args:
        tensor: Shape ``(rows, vocab)``.
        at_once: Whether to fetch the largest of all rows together.

    Attributes:
        tensor: That.
        at_once: That.
        vocab_size: Number of logits in a row.
        numbers: The same as numpy reads it; ``None`` if it cannot, or before :meth:`open`.
        marks: Room for a mark of each logit of a row, if numpy reads it.
    """

    __slots__ = (
        *("_fetched", "_is_open", "_topk", "at_once", "marks", "numbers", "tensor"),
        "vocab_size",
    )

    def __init__(self, tensor: torch.Tensor, *, at_once: bool) -> None:
        self.tensor = tensor
        self.numbers: Any = None
        self.marks: Any = None
        self._is_open = False
        self.vocab_size: int = tensor.shape[1]
        self.at_once = at_once
        self._topk: Any = None
        self._fetched: Any = None

    def open(self) -> None:
        """Find out how they are read; most steps read none."""
        if self._is_open:
            return
        self._is_open = True
        self.numbers = device_of(self.tensor).as_numpy(self.tensor)
        if self.numbers is not None:
            import numpy as np

            self.marks = np.empty(self.vocab_size, dtype=bool)

    def topk(self, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest logits of all rows on their device, and their ids.

        Args:
            most: At least so many of each, or all of them.

        Returns:
            Both of shape ``(rows, any)``, in descending order, NaN first.
        """
        count = min(max(most, _MOST), self.vocab_size)
        if self._topk is None or self._topk[0].shape[1] < count:
            self._topk = self.tensor.topk(count)
        return self._topk  # type: ignore[no-any-return]

    def largest(self, index: int) -> tuple[list[float], list[int]]:
        """Return the largest logits of a row, and their ids; none if rows are read one by one.

        Logits in descending order, NaN first.
        """
        if not self.at_once:
            return [], []
        if self._fetched is None:
            import torch

            values, ids = self.topk(_MOST)
            # One copy: float64 holds every id and every logit as it is.
            both = torch.stack((values.double(), ids.double())).cpu()
            self._fetched = both[0].tolist(), both[1].long().tolist()
        values, ids = self._fetched
        return values[index], ids[index]


class ReadRow:
    """A row of them. The largest logit is read once, however often it is asked for.

    Attributes:
        is_over: Whether the edit that reads it has returned.
    """

    __slots__ = ("_index", "_logits", "_most", "is_over")

    def __init__(self, logits: Logits, index: int) -> None:
        logits.open()
        self._logits = logits
        self._index = index
        self._most: float | None = None
        self.is_over = False

    def is_among_top(self, ids: Ids | list[int], count: int) -> bool:
        """Tell whether one of these tokens is among the ``count`` likeliest.

        Raises:
            ProcessorFault: It is asked too late.
        """
        if self.is_over:
            raise ProcessorFault("what is_among_top() returned is for the edit that asked")
        if self._logits.at_once:
            known = self.judge(ids, count)
            if known is not None:
                return known
        best = self.largest(ids)
        return best > -math.inf and not self.exceed(best, count)

    def largest(self, ids: Ids | list[int]) -> float:
        """Return the largest logit of some tokens; NaN if one is."""
        if self._logits.numbers is None:
            return float(self._logits.tensor[self._index][tensor_of(ids)].amax())
        places = ids.tensor.numpy() if isinstance(ids, Ids) else ids
        return float(self._logits.numbers[self._index].take(places).max())

    def judge(self, ids: Ids | list[int], count: int) -> bool | None:
        """Tell by the largest logits whether one of these tokens is among the ``count`` likeliest.

        Returns:
            ``None`` if these logits do not show it.
        """
        values, top = self._logits.largest(self._index)
        if count > len(values) or math.isnan(values[0]):
            return None
        last = values[count - 1]
        likeliest = [i for i, v in zip(top, values, strict=True) if v >= last and v > -math.inf]
        if any(token_id in ids for token_id in likeliest):
            return True
        return False if values[-1] < last or values[-1] == -math.inf else None

    def exceed(self, value: float, count: int) -> bool:
        """Tell whether so many logits of the row are larger than a value."""
        if count > 1:
            return self._count_above(value) >= count
        if self._most is None:
            numbers = self._logits.numbers
            row = self._logits.tensor[self._index] if numbers is None else numbers[self._index]
            self._most = float(row.max())
        if math.isnan(self._most):
            return self._count_above(value) >= count
        return self._most > value

    def _count_above(self, value: float) -> int:
        logits, index = self._logits, self._index
        if logits.numbers is None:
            return int((logits.tensor[index] > value).sum())
        import numpy as np

        return int(np.count_nonzero(np.greater(logits.numbers[index], value, out=logits.marks)))


class ServedRequest(Request):
    """A request with the logits of its step at hand.

    Attributes:
        sampling: SGLang's ``SamplingParams`` of the request, or ``None`` in a unit test.
        lent: While ``edit`` runs: the logits of the batch.
        index: The row of this request among them.
        copied: The copy of that row, if the processor asked for it.
        read: What was read of that row, if nothing was copied.
    """

    __slots__ = ("copied", "index", "lent", "read", "sampling")

    def __init__(
        self, params: Parameters | None, *, may_lag: bool, tokenizer: Any, sampling: Any = None
    ) -> None:
        super().__init__(params, may_lag=may_lag, tokenizer=tokenizer)
        self.sampling = sampling
        self.lent: Logits | None = None
        self.index = 0
        self.copied: torch.Tensor | None = None
        self.read: ReadRow | None = None

    @property
    def logits(self) -> torch.Tensor:
        if self.copied is None:
            if self.lent is None:
                return super().logits
            self.copied = self.lent.tensor[self.index].clone()
        return self.copied

    def top(self, count: int) -> list[int]:
        if self.lent is None:
            return super().top(count)
        if self.copied is None:
            most, top = self.lent.largest(self.index)
            if count <= len(most) and not math.isnan(most[0]):
                return [i for i, v in zip(top[:count], most, strict=False) if v > -math.inf]
        read = self.lent.tensor[self.index] if self.copied is None else self.copied
        if count == 1:  # half the time of topk on a CPU
            values, ids = read.max(0, keepdim=True)
        else:
            values, ids = read.topk(min(count, read.shape[0]))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return [token_id for token_id, value in pairs if value > -math.inf]

    def is_among_top(self, token_ids: Iterable[int], count: int) -> Answer:
        if self.lent is None:
            return super().is_among_top(token_ids, count)
        ids = checked(token_ids, self.lent.vocab_size)
        if not ids or count < 1:
            raise ProcessorFault(
                f"is_among_top() needs a token id and a count of 1 or more, got {len(ids)} ids and "
                f"the count {count}"
            )
        if self.copied is not None:  # which may change before it is asked for again
            return ReadRow(Logits(self.copied[None], at_once=False), 0).is_among_top(ids, count)
        read = self.read = self.read or ReadRow(self.lent, self.index)
        return Question(read, ids, count) if self.lent.at_once else read.is_among_top(ids, count)
