"""The logits of a step as a processor reads them, through its request.

:class:`Reading` implements the properties of :class:`~sglang_lp.request.Request` that need logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.device import device_of
from sglang_lp.edits.ids import Ids, checked, tensor_of
from sglang_lp.edits.questions import Question
from sglang_lp.errors import ProcessorFault
from sglang_lp.request import outside_edit

if TYPE_CHECKING:
    import torch

    from sglang_lp.request import Answer

#: Number of the largest logits of each row that are copied to the host at once. Reading more, or a
#: tie beyond them, waits for the device once more.
_MOST = 64


class Logits:
    """The logits of one step.

    On a GPU, the first row that is read fetches the largest logits of all rows, so that the host
    waits once. On a CPU, numpy reads float32 rows in a quarter of torch's time
    (``make bench PART=bounds``).

    Args:
        tensor: Shape ``(rows, vocab)``.
        at_once: Whether to fetch the largest of all rows together.

    Attributes:
        vocab_size: Number of logits in a row.
        numbers: The same memory as an array; ``None`` before :meth:`open`, or if numpy cannot read
            it.
        marks: Buffer for one truth value per logit of a row, if numpy reads the logits.
    """

    __slots__ = (
        *("_fetched", "_is_open", "at_once", "marks", "numbers", "tensor"),
        "vocab_size",
    )

    def __init__(self, tensor: torch.Tensor, *, at_once: bool) -> None:
        self.tensor = tensor
        self.numbers: Any = None
        self.marks: Any = None
        self._is_open = False
        self.vocab_size: int = tensor.shape[1]
        self.at_once = at_once
        self._fetched: Any = None

    def open(self) -> None:
        """Choose how to read the logits; most steps read none."""
        if self._is_open:
            return
        self._is_open = True
        self.numbers = device_of(self.tensor).as_numpy(self.tensor)
        if self.numbers is not None:
            import numpy as np

            self.marks = np.empty(self.vocab_size, dtype=bool)

    def largest(self, index: int) -> tuple[list[float], list[int]]:
        """Return the largest logits of a row, descending with NaN first, and their ids.

        Empty if rows are read one by one.
        """
        if not self.at_once:
            return [], []
        if self._fetched is None:
            import torch

            values, ids = self.tensor.topk(min(_MOST, self.vocab_size))
            # One copy: float64 holds every id and every logit as it is.
            both = torch.stack((values.double(), ids.double())).cpu()
            self._fetched = both[0].tolist(), both[1].long().tolist()
        values, ids = self._fetched
        return values[index], ids[index]


class ReadRow:
    """One row of the logits. Its largest logit is read once.

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
            ProcessorFault: ``edit`` has returned.
        """
        if self.is_over:
            raise ProcessorFault(
                "an answer of is_among_top() can be read only in the edit() that asked"
            )
        if self._logits.at_once:
            known = self.judge(ids, count)
            if known is not None:
                return known
        best = self.largest(ids)
        return best > -math.inf and not self.exceed(best, count)

    def largest(self, ids: Ids | list[int]) -> float:
        """Return the largest logit of some tokens; NaN if any of them is NaN."""
        if self._logits.numbers is None:
            return float(self._logits.tensor[self._index][tensor_of(ids)].amax())
        places = ids.tensor.numpy() if isinstance(ids, Ids) else ids
        return float(self._logits.numbers[self._index].take(places).max())

    def judge(self, ids: Ids | list[int], count: int) -> bool | None:
        """Answer :meth:`is_among_top` from the largest logits; ``None`` if they do not suffice."""
        values, top = self._logits.largest(self._index)
        if math.isnan(values[0]):
            return False
        if count > len(values):
            return None
        last = values[count - 1]
        likeliest = [i for i, v in zip(top, values, strict=True) if v >= last and v > -math.inf]
        if any(token_id in ids for token_id in likeliest):
            return True
        return False if values[-1] < last or values[-1] == -math.inf else None

    def exceed(self, value: float, count: int) -> bool:
        """Tell whether ``count`` logits of the row are larger than a value, or one is NaN."""
        if self._most is None:
            numbers = self._logits.numbers
            row = self._logits.tensor[self._index] if numbers is None else numbers[self._index]
            self._most = float(row.max())
        if self._most <= value:
            return False
        return count == 1 or math.isnan(self._most) or self._count_above(value) >= count

    def _count_above(self, value: float) -> int:
        logits, index = self._logits, self._index
        if logits.numbers is None:
            return int((logits.tensor[index] > value).sum())
        import numpy as np

        return int(np.count_nonzero(np.greater(logits.numbers[index], value, out=logits.marks)))


class Reading:
    """The logits of a step as the processors of one row read them.

    Attributes:
        lent: The logits of the batch while ``edit`` runs, else ``None``.
        index: The row of this request in these logits.
        copied: A copy of the row, if a processor read ``request.logits``; all processors of the
            row share it.
        read: The row as it was read, if it was not copied.
    """

    __slots__ = ("copied", "index", "lent", "read")

    def __init__(self) -> None:
        self.index = 0
        self.lent: Logits | None = None
        self.copied: torch.Tensor | None = None
        self.read: ReadRow | None = None

    def open(self, logits: Logits, index: int) -> None:
        """Lend the logits of a step."""
        self.lent, self.index = logits, index

    def close(self) -> None:
        """Take the logits back; answers that were not read yet cannot be read any more."""
        if self.read is not None:
            self.read.is_over = True
        self.lent = self.copied = self.read = None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Lend nothing while the block runs."""
        lent, copied = self.lent, self.copied
        self.lent = self.copied = None
        try:
            yield
        finally:
            self.lent, self.copied = lent, copied

    @property
    def logits(self) -> torch.Tensor:
        """The copy of the row, see :attr:`Request.logits`."""
        if self.copied is None:
            if self.lent is None:
                raise outside_edit()
            self.copied = self.lent.tensor[self.index].clone()
        return self.copied

    def top(self, count: int) -> list[int]:
        """Return the largest logits, see :meth:`Request.top`."""
        if self.lent is None:
            raise outside_edit()
        if self.copied is None:
            most, top = self.lent.largest(self.index)
            if count <= len(most) and not math.isnan(most[0]):
                return [i for i, v in zip(top[:count], most, strict=False) if v > -math.inf]
        read = self.lent.tensor[self.index] if self.copied is None else self.copied
        if count == 1:
            values, ids = read.max(0, keepdim=True)
        else:
            values, ids = read.topk(min(count, read.shape[0]))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return [token_id for token_id, value in pairs if value > -math.inf]

    def is_among_top(self, token_ids: Iterable[int], count: int) -> Answer:
        """Ask whether a token is among the largest, see :meth:`Request.is_among_top`."""
        if self.lent is None:
            raise outside_edit()
        ids = checked(token_ids, self.lent.vocab_size)
        if not ids or count < 1:
            raise ProcessorFault(
                f"is_among_top() needs a token id and a count of 1 or more, got {len(ids)} ids and "
                f"the count {count}"
            )
        if self.copied is not None:  # the copy may change before the next question
            return ReadRow(Logits(self.copied[None], at_once=False), 0).is_among_top(ids, count)
        read = self.read = self.read or ReadRow(self.lent, self.index)
        return Question(read, ids, count) if self.lent.at_once else read.is_among_top(ids, count)
