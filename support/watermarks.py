"""Watermark keys for tests, and a processor that has one where no server has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp.builtins import WatermarkLogitProcessor
from sglang_lp.watermark.keys import GreenKey, TournamentKey
from sglang_lp.watermark.reading import scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sglang_lp.served_model import ServedModel
    from sglang_lp.watermark.marks import Scheme

__all__ = [
    "GREEN",
    "GREEN_SCHEME",
    "MARKED",
    "SELF",
    "SELF_SCHEME",
    "TOURNAMENT",
    "TOURNAMENT_SCHEME",
    "GreenMarks",
    "SelfMarks",
    "TournamentMarks",
    "with_watermark",
    "write_key",
]

#: Named as in Transformers' configurations.
GREEN: dict[str, Any] = {
    "hashing_key": 15_485_863_123,
    "greenlist_ratio": 0.25,
    "bias": 2.0,
    "seeding_scheme": "lefthash",
    "context_width": 1,
}
SELF: dict[str, Any] = {**GREEN, "seeding_scheme": "selfhash", "context_width": 3}
TOURNAMENT: dict[str, Any] = {
    "keys": [7_654_321 + 987_654_321 * place for place in range(30)],
    "ngram_len": 5,
    "context_history_size": 1024,
    "sampling_table_size": 65_536,
    "sampling_table_seed": 1_234_567,
}


GREEN_SCHEME: Scheme = scheme_of(GreenKey(**GREEN))
SELF_SCHEME: Scheme = scheme_of(GreenKey(**SELF))
TOURNAMENT_SCHEME: Scheme = scheme_of(
    msgspec.convert({"scheme": "synthid", **TOURNAMENT}, TournamentKey)
)


#: A profile of a policy, whose answers are watermarked.
MARKED = """
[profiles.marked]
processors = [{ processor = "WatermarkLogitProcessor" }]
"""


class GreenMarks(WatermarkLogitProcessor):
    """The processor on a server with green lists that the token before seeds."""

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Take the key."""
        return super().fit_params(params, served._replace(watermark=GREEN_SCHEME))


class SelfMarks(WatermarkLogitProcessor):
    """The processor on a server with green lists that the token itself seeds."""

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Take the key."""
        return super().fit_params(params, served._replace(watermark=SELF_SCHEME))


class TournamentMarks(WatermarkLogitProcessor):
    """The processor on a server with a tournament."""

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Take the keys."""
        return super().fit_params(params, served._replace(watermark=TOURNAMENT_SCHEME))


def write_key(directory: Path, scheme: str, given: Mapping[str, Any]) -> Path:
    """Write a key file that only its owner may read.

    Args:
        directory: Of the file.
        scheme: "kgw" or "synthid".
        given: The other values of the file.
    """
    path = directory / "watermark.toml"
    path.touch(mode=0o600)
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"scheme": scheme, **given}.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def with_watermark(policy: Path, scheme: str = "kgw", given: Mapping[str, Any] = GREEN) -> Path:
    """Add a key to a policy.

    Args:
        policy: The policy, which changes.
        scheme: As for :func:`write_key`, like ``given``.
        given: The other values of the key file.

    Returns:
        The policy.
    """
    key = write_key(policy.parent, scheme, given)
    policy.write_text(f"watermark = {json.dumps(key.name)}\n{policy.read_text()}")
    return policy
