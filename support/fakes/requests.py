"""A fake of SGLang's ``Req``, the scheduler's object for one request."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from sglang_lp.testing import FakeRequest

__all__ = ["Ended", "Req"]


class Ended(NamedTuple):
    """Arguments of ``Req.set_finish_with_abort``."""

    message: str
    status: int
    kind: str


class Req(FakeRequest):
    """The part of SGLang's ``Req`` that the scheduler's gate, its results and the hosts read.

    No token of its prompt has gone through the model yet.

    Attributes:
        ended: How the gate ended the request, or ``None``.
    """

    def __init__(
        self,
        payload: str | None = None,
        custom_params: Any = None,
        *,
        prompt: Iterable[int] = (1, 2, 3),
        output: Iterable[int] = (),
        sampling: Mapping[str, Any] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(prompt, output, served=True)
        self.kv.kv_committed_len = 0
        self.finished_len: int | None = None
        self.custom_logit_processor = payload
        if isinstance(custom_params, dict):  # as SGLang adds it
            custom_params = {**custom_params, "__req__": weakref.proxy(self)}
        self.sampling_params = SimpleNamespace(
            custom_params=custom_params, max_new_tokens=None, **(sampling or {})
        )
        self.vocab_size: int | None = None
        self.inflight_middle_chunks = 0
        self.is_retracted = False
        self.disagg_kv_sender: Any = None
        self.ended: Ended | None = None
        vars(self).update(attributes)

    def finished(self) -> bool:
        """Tell whether the request has a finish reason."""
        return self.finished_reason is not None

    def set_finish_with_abort(self, message: str, status_code: int, err_type: str) -> None:
        """Keep how the request ended."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        self.ended = Ended(message, status_code, err_type)
        self.to_finish = FINISH_ABORT(message, status_code, err_type)
