"""Answers to questions about logits, computed on a CPU as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sglang_lp._engine import step
from sglang_lp._engine.apply import answers
from sglang_lp._engine.apply.device import Copy
from sglang_lp._engine.apply.reading import Logits
from sglang_lp._engine.batch import Batch

__all__ = ["decided_as_on_a_gpu"]

_run = Batch.step


class _Apart(Logits):
    def __init__(self, tensor: Any, **_given: Any) -> None:
        super().__init__(tensor, at_once=True)


class _Late(Copy):
    #: Number of finished steps.
    steps = 0

    def __init__(self, numbers: Any) -> None:
        super().__init__(numbers)
        self._step = _Late.steps

    def read(self) -> Any:
        if self._step == _Late.steps:
            raise AssertionError("the host waited for an answer of the device")
        return super().read()


def _step(*args: Any, **kwargs: Any) -> Any:
    try:
        return _run(*args, **kwargs)
    finally:
        _Late.steps += 1


@contextmanager
def decided_as_on_a_gpu() -> Iterator[None]:
    """Answer :meth:`~sglang_lp.request.Request.is_among_top` with tensor operations.

    The host may read the answers after the step; reading them earlier is an error.
    """
    with ExitStack() as stack:
        for owner, name, changed in (
            (step, "Logits", _Apart),
            (answers, "Copy", _Late),
            (Batch, "step", _step),
        ):
            stack.enter_context(patch.object(owner, name, changed))
        yield
