"""A request as SGLang shows it to a processor."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

__all__ = ["FakeRequest"]


class FakeRequest:
    """A request as SGLang shows it to a processor.

    A fault of the processor is raised into the test. With ``served=True`` the request is as on
    a server: it has SGLang's bookkeeping of positions, and a fault sets ``to_finish``.

    Attributes:
        origin_input_ids: Token ids of the prompt.
        output_ids: Token ids generated so far.
        kv: With ``served=True``: ``kv.kv_committed_len``, the number of tokens that the model has
            computed, including this step. Set it lower for a middle chunk of a chunked prefill,
            and one higher for a step whose newest token is not in ``output_ids`` yet.
        to_finish: With ``served=True``: the error that ends the request, or ``None``.
        finished_reason: With ``served=True``: set once the request has finished.
        tokenizer: The served model's, or ``None``.
        eos_token_ids: The end tokens that the model's configuration names, or ``None``.
    """

    def __init__(
        self,
        prompt_ids: Iterable[int],
        output_ids: Iterable[int] = (),
        *,
        served: bool = False,
        tokenizer: Any = None,
        eos_token_ids: Iterable[int] | None = None,
    ) -> None:
        self.origin_input_ids = array("q", prompt_ids)
        self.output_ids = array("q", output_ids)
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        if served:
            self.kv = SimpleNamespace(kv_committed_len=0)
            self.to_finish: Any = None
            self.finished_reason: Any = None
            self.commit()

    def append(self, token_id: int) -> None:
        """Append a generated token."""
        self.output_ids.append(token_id)
        if hasattr(self, "kv"):
            self.commit()

    def commit(self) -> None:
        """Mark the whole history as computed by the model."""
        self.kv.kv_committed_len = len(self.origin_input_ids) + len(self.output_ids)

    def custom_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``custom_params`` that SGLang would pass to the processor.

        Keep the dict for the life of the request: it holds the processor's state.
        """
        return {**params, "__req__": self}
