"""The options of the two scripts that measure on a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Options", "parse"]


class Options(NamedTuple):
    """The options of a run.

    Attributes:
        device: ``"cuda"`` or ``"cpu"``.
        minutes: Time for all of it.
        out: File for the records. Its folder exists.
    """

    device: str
    minutes: float
    out: Path


def parse(
    name: str,
    about: str | None,
    minutes: float,
    out: Path,
    arguments: Sequence[str] | None,
) -> Options:
    """Parse the arguments of a script.

    Args:
        name: Of the script, such as ``"gpu"``.
        about: Its documentation.
        minutes: Default of ``--minutes``.
        out: Default of ``--out``.
        arguments: Those of the command line if ``None``.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.devices.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--out", type=Path, default=out, help="file for the records")
    given = Options(**vars(parser.parse_args(arguments)))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    return given
