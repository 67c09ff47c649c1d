"""The device of the logits: what differs between a CPU and a GPU, and copies either way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sglang_lp._engine.apply import cpu, cuda

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.near_top import NearTop
    from sglang_lp._engine.compiled.edits import CompiledEdits


class Device(Protocol):
    """The interface of the modules ``cpu`` and ``cuda``.

    Attributes:
        ROW_BY_ROW: Whether to read and write rows one by one. On a CPU a view of a row is cheaper
            than a lookup of indices; on a GPU each operation is a kernel and each read a wait.
    """

    ROW_BY_ROW: bool

    def send(self, numbers: torch.Tensor, device: torch.device, /) -> torch.Tensor:
        """Return numbers of the host on the device, without a wait."""

    def start_copy(self, numbers: torch.Tensor, /) -> tuple[torch.Tensor, Any]:
        """Return a host tensor that gets the numbers, and an event to wait for or ``None``."""

    def as_numpy(self, logits: torch.Tensor, /) -> Any:
        """Return the memory of logits as an array, or ``None`` if numpy cannot read it."""

    def fill(self, flat: torch.Tensor, indices: torch.Tensor, value: float) -> None:
        """Write one value at indices of a tensor of one dimension, in place."""

    def mask_rows(self, rows: torch.Tensor, edits: CompiledEdits) -> None:
        """Set the logits that wide compiled edits exclude to ``-inf``.

        Args:
            rows: Shape ``(any, vocab)``, edited in place. Other logits keep their bits.
            edits: Their mask says which.
        """

    def scale(self, logits: torch.Tensor, factors: torch.Tensor) -> None:
        """Multiply the logits of each row, in place; a factor of 1 keeps their bits.

        No product becomes ``+inf``. A float16 row first loses its largest logit, which leaves the
        probabilities as they are.

        Args:
            logits: Shape ``(rows, vocab)``.
            factors: Shape ``(rows, 1)``, float32.
        """

    def keep_near_top(self, logits: torch.Tensor, kept: Sequence[NearTop]) -> None:
        """In some rows, set the logits far below the row's largest to ``-inf``, in place.

        Far is the standard deviation of the row's finite logits, times ``sigmas``. A row with NaN
        or ``+inf`` does not change. Other logits keep their bits.

        Args:
            logits: Shape ``(any, vocab)``, with all other edits applied.
            kept: The rows. Where a row occurs several times, the smallest ``sigmas`` counts.
        """


def device_of(tensor: torch.Tensor) -> Device:
    """Return the module for the device of a tensor."""
    return cpu if cpu.has(tensor) else cuda


def send(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return numbers of the host on the device of the logits, without a wait."""
    on: Device = cpu if cpu.serves(device) else cuda
    return on.send(numbers, device)


def index_on(device: torch.device, rows: Sequence[int]) -> torch.Tensor:
    """Return indices of rows on a device; indexing with a list would wait for its copy."""
    import torch

    return send(torch.tensor(rows, dtype=torch.int64), device)


class Copy:
    """Numbers or truth values on their way from the device to the host.

    Args:
        numbers: A tensor of any shape, which may be written over afterwards.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self._host, self._done = device_of(numbers).start_copy(numbers)

    def read(self) -> Any:
        """Wait for the copy, and return the numbers in lists of the tensor's shape."""
        if self._done is not None:
            self._done.synchronize()
        return self._host.tolist()
