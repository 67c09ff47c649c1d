"""Reading a key file: the secret of a watermark, read once and never shown.

``docs/watermark.md`` documents the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sglang_lp.errors import PolicyError
from sglang_lp.watermark.keys import GreenKey, TournamentKey

if TYPE_CHECKING:
    from sglang_lp.watermark.marks import Scheme

__all__ = ["read_key", "scheme_of"]

#: A key file is a few lines.
_MAX_FILE_BYTES = 1 << 16

#: Permissions of users other than the owner.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def scheme_of(key: GreenKey | TournamentKey) -> Scheme:
    """Return the scheme with a key."""
    # Not above, because they need numpy, and a client does not.
    if isinstance(key, GreenKey):
        from sglang_lp.watermark.green_lists import GreenLists

        return GreenLists(key)
    from sglang_lp.watermark.tournament import Tournament

    return Tournament(key)


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
    return scheme_of(key)


def _explained(message: str) -> str:
    """Return a message of msgspec that shows no value; only of the scheme it does."""
    if message.startswith("Invalid value"):
        return "scheme: expected kgw or synthid"
    if message.startswith("Invalid enum value"):
        return "seeding_scheme: expected lefthash or selfhash"
    if "required field `scheme`" in message:
        return "expected scheme, kgw or synthid, got none"
    return message.replace("`", "").replace(" - at $.", " for ")
