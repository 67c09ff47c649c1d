"""Requests and logits of the contract suite."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.testing.requests import FakeRequest

if TYPE_CHECKING:
    import torch


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


def random_cases(
    every_params: Sequence[Mapping[str, Any]],
    token_ids: Sequence[int],
    vocab_size: int,
    *,
    tokenizer: Any,
    eos_token_ids: Sequence[int],
) -> list[Case]:
    """Make requests with random histories, the same at every call.

    Args:
        every_params: ``custom_params``, each for four histories.
        token_ids: Ids that make up the histories, with the ids in ``custom_params`` and a few
            others.
        vocab_size: Number of logits in a row.
        tokenizer: The served model's, or ``None``.
        eos_token_ids: The end tokens that the model's configuration names.
    """
    rng = random.Random(0)  # noqa: S311 - no secret
    cases = []
    for params in every_params:
        matter = [*token_ids, *_token_ids_in(params, vocab_size)]
        for length in (0, 1, 2, 12):
            pool = [*matter * 2, *(rng.randrange(vocab_size) for _ in range(5))]
            prompt_ids = rng.choices(pool, k=rng.randint(1, 30))
            output_ids = rng.choices(pool, k=length)
            cases.append(Case(params, prompt_ids, output_ids, tokenizer, eos_token_ids))
    return cases


def _token_ids_in(params: Mapping[str, Any], vocab_size: int) -> list[int]:
    """Return the numbers among the parameters that could be token ids."""
    lists = [value if isinstance(value, list) else [value] for value in params.values()]
    return [i for ids in lists for i in ids if isinstance(i, int) and 0 <= i < vocab_size]


def random_logits(rows: int, vocab_size: int, dtype: str = "float32") -> torch.Tensor:
    """Return random logits, the same at every call.

    Args:
        rows: Number of rows.
        vocab_size: Number of logits in a row.
        dtype: The name of torch's float type.
    """
    import torch

    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * 4
    return logits.to(getattr(torch, dtype))
