"""Reading rows of logits for processors whose edits depend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp._engine.ids import Ids, tensor_of

if TYPE_CHECKING:
    import torch

__all__ = ["Logits", "ReadRow"]


class Logits:
    """The logits of one step.

    numpy reads them where it can, in a quarter of torch's time (``make bench-bounds``).

    Attributes:
        tensor: Shape ``(rows, vocab)``.
        numbers: The same as numpy reads it; ``None`` if it cannot, or before :meth:`open`.
        marks: Room for a mark of each logit of a row, if numpy reads it.
    """

    __slots__ = ("_is_open", "marks", "numbers", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.numbers: Any = None
        self.marks: Any = None
        self._is_open = False

    def open(self) -> None:
        """Find out how they are read; most steps read none."""
        if self._is_open:
            return
        import torch

        self._is_open = True
        if self.tensor.is_cpu and self.tensor.dtype == torch.float32:
            import numpy as np

            self.numbers = self.tensor.numpy()
            self.marks = np.empty(self.tensor.shape[1], dtype=bool)


class ReadRow:
    """A row of them. The largest logit is read once, however often it is asked for."""

    __slots__ = ("_index", "_logits", "_most")

    def __init__(self, logits: Logits, index: int) -> None:
        logits.open()
        self._logits = logits
        self._index = index
        self._most: float | None = None

    def largest(self, ids: Ids | list[int]) -> float:
        """Return the largest logit of some tokens; NaN if one is."""
        if self._logits.numbers is None:
            return float(self._logits.tensor[self._index][tensor_of(ids)].amax())
        places = ids.tensor.numpy() if isinstance(ids, Ids) else ids
        return float(self._logits.numbers[self._index].take(places).max())

    def exceed(self, value: float, count: int) -> bool:
        """Tell whether so many logits of the row are larger than a value."""
        if count > 1:
            return self._count_above(value) >= count
        if self._most is None:
            numbers = self._logits.numbers
            row = self._logits.tensor[self._index] if numbers is None else numbers[self._index]
            self._most = float(row.max())
        return self._most > value

    def _count_above(self, value: float) -> int:
        logits, index = self._logits, self._index
        if logits.numbers is None:
            return int((logits.tensor[index] > value).sum())
        import numpy as np

        return int(np.count_nonzero(np.greater(logits.numbers[index], value, out=logits.marks)))
