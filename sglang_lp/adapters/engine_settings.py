"""The settings of a server that classes of other engines read when they are made."""

from __future__ import annotations

from typing import NamedTuple


class EngineSettings(NamedTuple):
    """A server as far as an adapted class may know it.

    Attributes:
        device: Where logits are: ``cpu``, ``cuda:0``.
        vocab_size: Number of logits in a row.
        max_requests: Most requests in a batch.
        max_length: Most tokens of a request, prompt and output.
        model: Name or directory of the model.
        tokenizer: Name or directory of the tokenizer.
        trust_remote_code: Whether the model's own code may run.
        decodes: Whether it generates, and does not only prefill for other servers.
        eos_token_id: The tokenizer's end token, if it has one.
        eos_token_ids: All tokens that end an answer of the model.
    """

    device: str = "cpu"
    vocab_size: int = 0
    max_requests: int = 256
    max_length: int = 8192
    model: str = ""
    tokenizer: str = ""
    trust_remote_code: bool = False
    decodes: bool = True
    eos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
