"""Dynamo's ``ForcedTokenSequenceSpec``, the one processor that Dynamo sends as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from sglang_lp.builtins import ForcedSequenceLogitProcessor
from sglang_lp.params import FewTokenIds, NonEmptyTokenIds, Parameters

__all__ = ["ForcedTokenSequenceSpec"]


class ForcedTokenSequenceSpec(ForcedSequenceLogitProcessor):
    """Force the tokens of a Dynamo entry, then its end token.

    ``custom_params`` is the entry as Dynamo serializes it. Dynamo's own processor counts its calls;
    this one reads the position, so it is right on every server that this toolkit supports,
    with speculative decoding and with prefill and decode apart.
    """

    __module__ = "sglang_lp.adapters"
    example: ClassVar[Mapping[str, Any]] = {
        "kind": "forced_sequence",
        "token_ids": [5, 6],
        "eos_token_id": 2,
    }

    class Params(Parameters, frozen=True):
        """What an entry holds.

        Attributes:
            kind: The kind of entry.
            token_ids: The sequence.
            eos_token_ids: ``eos_token_id`` of the entry.
        """

        renamed: ClassVar[Mapping[str, str]] = {"eos_token_id": "eos_token_ids"}

        kind: Literal["forced_sequence"]
        token_ids: NonEmptyTokenIds
        eos_token_ids: FewTokenIds
        text: None = None
