"""The keys of watermarks: the secrets, with the settings that belong to them."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["GreenKey", "TournamentKey"]

_Int63 = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
_Context = Annotated[int, Meta(ge=1, le=64)]


class _Secret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct that shows no value of its own."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []

    def digest(self) -> str:
        """Return a digest of all values, for processes of one server."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class GreenKey(_Secret, frozen=True, kw_only=True, tag_field="scheme", tag="kgw"):
    """The key and the settings of green lists, named as in Transformers' ``WatermarkingConfig``.

    Attributes:
        hashing_key: The key.
        greenlist_ratio: Share of the vocabulary that is green.
        bias: Added to the logits of green tokens, after the temperature.
        seeding_scheme: "lefthash" seeds a list with the token before, "selfhash" also with the
            token itself.
        context_width: Number of tokens that "selfhash" reads, and that have to come before the
            first marked token.
    """

    hashing_key: _Int63
    greenlist_ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.25
    bias: Annotated[float, Meta(gt=0, le=100)] = 2.0
    seeding_scheme: Literal["lefthash", "selfhash"] = "lefthash"
    context_width: _Context = 1


class TournamentKey(_Secret, frozen=True, kw_only=True, tag_field="scheme", tag="synthid"):
    """The keys and the settings of a tournament, named as in ``SynthIDTextWatermarkingConfig``.

    Attributes:
        keys: A key for each layer.
        ngram_len: Number of tokens that a hash reads, with the token that it is for.
        context_history_size: Number of steps within which a context marks one token.
        sampling_table_size: Number of random bits that hashes look up.
        sampling_table_seed: Seed of these bits.
    """

    keys: Annotated[tuple[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)], ...], Meta(max_length=64)]
    ngram_len: Annotated[int, Meta(ge=2, le=64)] = 5
    context_history_size: Annotated[int, Meta(ge=1, le=4096)] = 1024
    sampling_table_size: Annotated[int, Meta(ge=2, le=1 << 24)] = 1 << 16
    sampling_table_seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0

    def __post_init__(self) -> None:
        if not self.keys or len({key % self.sampling_table_size for key in self.keys}) < len(
            self.keys
        ):
            raise ValueError(
                "keys: expected at least one number, and numbers that differ by no multiple of "
                "sampling_table_size, whose layers would be equal; draw others at random"
            )
