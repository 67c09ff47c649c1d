"""A request of the contract suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang_lp.testing.requests import FakeRequest


class Case(NamedTuple):
    """A request in the middle of its decode.

    Attributes:
        params: Its ``custom_params``.
        prompt_ids: Token ids of its prompt.
        output_ids: Token ids generated so far.
        tokenizer: The served model's, or ``None``.
        eos_token_ids: The end tokens that the model's configuration names.
    """

    params: Mapping[str, Any]
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    tokenizer: Any
    eos_token_ids: Sequence[int]

    def request(self, *, served: bool = False) -> FakeRequest:
        """Return the request without its output."""
        return FakeRequest(
            self.prompt_ids,
            served=served,
            tokenizer=self.tokenizer,
            eos_token_ids=self.eos_token_ids,
        )

    def custom_params(self) -> dict[str, Any]:
        """Return the ``custom_params`` that SGLang passes to the processor, with the output."""
        request = self.request()
        request.output_ids.extend(self.output_ids)
        return request.custom_params(self.params)
