"""Counts the kernels, copies and waits of a step on a GPU, without a GPU.

Torch's fake tensors say ``device="cuda"`` and hold no numbers: shapes, dtypes and devices are
right, nothing is computed. Every copy from the device and every wait of the host is counted, also
a wait for an event of the counted step; events of earlier steps are over. Copies to the host hold
descending numbers, so that they read as sorted; a single truth value is true.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["FakeGpu"]

#: Operations that launch nothing.
_FREE = {"detach", "device", "empty", "empty_like", "empty_strided", "new_empty", "resize_"}
#: Operations whose result has a size that only the device knows.
_SIZED = {"nonzero", "masked_select", "unique", "_unique2"}
#: Operations that read or write at indices.
_INDEXED = {"index", "index_put_", "index_put", "_index_put_impl_"}
#: Kernels of an operation that launches many: 20 to 25 on an H200 with torch 2.11.
_MANY = {"topk": 22}


class FakeGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Runs operations on tensors of a GPU without one.

    Attributes:
        kernels: Operations that a GPU would launch, by name.
        to_device: Copies from the host.
        to_host: Copies to the host.
        waits: Times that the host waits for the device.
        allocated: Bytes of new tensors on the device.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.clear()

    def clear(self) -> None:
        """Count from zero again."""
        self._step = object()
        self.kernels: Counter[str] = Counter()
        self.to_device = self.to_host = self.waits = self.allocated = 0

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor of the GPU."""
        with self._fakes:
            return torch.empty(*shape, dtype=dtype, device="cuda")

    @contextmanager
    def counting(self) -> Iterator[FakeGpu]:
        """Count, from zero, what is done."""
        self.clear()
        stream = SimpleNamespace(Event=self._event)
        with (
            warnings.catch_warnings(),
            patch.object(torch.Tensor, "pin_memory", lambda tensor, *_: tensor),
            patch.object(torch, "get_device_module", lambda *_: stream),
            patch.object(torch.cuda, "_lazy_init", lambda: None),
            self,
        ):
            # The data pointer tells whether tensors share memory; fake tensors have no memory.
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            yield self

    def _event(self) -> Any:
        step = self._step

        def synchronize() -> None:
            self.waits += self._step is step

        return SimpleNamespace(record=lambda: None, synchronize=synchronize)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        fake = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
        device = kwargs.get("device")
        target = None if device is None else torch.device(device).type
        if not fake and target != "cuda":
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.waits += 1
            self.to_host += 1
            return torch.ones((), dtype=args[0].dtype).item()
        if target == "cpu" or (name == "copy_" and not isinstance(args[0], FakeTensor)):
            return self._fetch(name, args, kwargs)
        if name in _SIZED or (name in _INDEXED and _waits(args)):
            self.waits += 1
        return self._launch(func, name, args, kwargs, from_host=not fake)

    def _fetch(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Copy to the host."""
        self.to_host += 1
        asynchronous = kwargs.get("non_blocking") or (name == "copy_" and args[2:3] == (True,))
        self.waits += not asynchronous
        falling = torch.arange(args[0].numel()).flip(0).view(args[0].shape)
        if name == "copy_":
            target: torch.Tensor = args[0]
            return target.copy_(falling)
        return falling.to(kwargs.get("dtype") or args[0].dtype)

    def _launch(
        self,
        func: Any,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        from_host: bool,
    ) -> Any:
        with self._fakes:
            out = func(*args, **kwargs)
        if (name == "_to_copy" and from_host) or (
            name == "copy_" and not isinstance(args[1], FakeTensor)
        ):
            self.to_device += 1
        elif func.is_view or name in _FREE:
            return out
        else:
            self.kernels[name] += _MANY.get(name, 1)
        if not name.endswith("_"):
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.allocated += leaf.numel() * leaf.element_size()
        return out


def _waits(args: Sequence[Any]) -> bool:
    """Tell whether an operation at indices waits: for a mask's size, or to send a number."""
    has_mask = any(i is not None and i.dtype in {torch.bool, torch.uint8} for i in args[1])
    return has_mask or any(not isinstance(one, FakeTensor) for one in args[2:3])
