"""Decides on a CPU as on a GPU: an SGLang plugin, and a context for tests without a server.

Where the host would wait for a GPU, tensor operations decide, and what they say reaches the host
when the step is over. Reading it earlier is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sglang_lp._engine import batch, questions, step
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.device import Copy
from sglang_lp._engine.reading import Logits

__all__ = ["NAME", "decided_as_on_a_gpu", "install"]

#: What ``SGLANG_PLUGINS`` calls this plugin.
NAME = "sglang_lp_cpu_deciding"

_run = Batch.step


class _Apart(Logits):
    def __init__(self, tensor: Any, **_given: Any) -> None:
        super().__init__(tensor, at_once=True)


class _Late(Copy):
    #: How many steps are over.
    steps = 0

    def __init__(self, numbers: Any) -> None:
        super().__init__(numbers)
        self._step = _Late.steps

    def read(self) -> Any:
        if self._step == _Late.steps:
            raise AssertionError("an answer was waited for")
        return super().read()


def _step(*args: Any, **kwargs: Any) -> Any:
    try:
        return _run(*args, **kwargs)
    finally:
        _Late.steps += 1


_CHANGED: tuple[tuple[Any, str, Any], ...] = (
    (batch, "Logits", _Apart),
    (step, "Logits", _Apart),
    (questions, "Copy", _Late),
    (Batch, "step", _step),
)


@contextmanager
def decided_as_on_a_gpu() -> Iterator[None]:
    """Let everything be decided so."""
    with ExitStack() as stack:
        for owner, name, changed in _CHANGED:
            stack.enter_context(patch.object(owner, name, changed))
        yield


def install() -> None:
    """Let everything be decided so in this process."""
    for owner, name, changed in _CHANGED:
        setattr(owner, name, changed)
