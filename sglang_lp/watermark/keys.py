"""Key files: the secret of a watermark, read once, and shown to nobody.

``docs/watermark.md`` documents the file.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sglang_lp.errors import PolicyError

if TYPE_CHECKING:
    from sglang_lp.watermark.marks import Scheme

__all__ = ["GreenKey", "TournamentKey", "read_key"]

#: A key file is a few lines.
_MAX_FILE_BYTES = 1 << 16

#: Permissions that let somebody other than the owner read or change a file.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_Int63 = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
_Context = Annotated[int, Meta(ge=1, le=64)]


class _Secret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct that shows no value of its own."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> Sequence[Any]:
        return ()

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

    def scheme(self) -> Scheme:
        """Return the scheme with this key."""
        from sglang_lp.watermark.green_lists import GreenLists  # which needs numpy

        return GreenLists(self)


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

    def scheme(self) -> Scheme:
        """Return the scheme with these keys."""
        from sglang_lp.watermark.tournament import Tournament  # which needs numpy

        return Tournament(self)


def read_key(path: str | Path) -> Scheme:
    """Read a key file, which only its owner may read.

    Args:
        path: A TOML file.

    Returns:
        The scheme with its key.

    Raises:
        PolicyError: The file cannot be read, others may read it, or it has a wrong key or value.
            The message has no value of the file.
    """
    try:
        # The file that is checked is the file that is read.
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"watermark {path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise PolicyError(f"watermark {path}: expected a file, got something else")
    if status.st_mode & _OTHERS:
        raise PolicyError(
            f"watermark {path}: expected a file that only its owner may read, got permissions "
            f"{stat.S_IMODE(status.st_mode):04o}; run chmod 600, and make a new key if others may "
            "have read it"
        )
    if len(raw) > _MAX_FILE_BYTES:
        raise PolicyError(f"watermark {path}: expected at most {_MAX_FILE_BYTES} bytes")
    try:
        key = msgspec.toml.decode(raw, type=GreenKey | TournamentKey)
    except msgspec.ValidationError as error:
        raise PolicyError(f"watermark {path}: {_explained(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PolicyError(f"watermark {path}: expected TOML; compare it with the page") from None
    return key.scheme()


def _explained(message: str) -> str:
    """Return a message of msgspec that shows no value; only of the scheme it does."""
    if message.startswith("Invalid value"):
        return "scheme: expected kgw or synthid"
    if "required field `scheme`" in message:
        return "expected scheme, kgw or synthid, got none"
    return message.replace("`", "").replace(" - at $.", " for ")
