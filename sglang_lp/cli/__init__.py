"""The command line: ``sglang-lp VERB``, one module for each verb.

Exit codes of every verb: 0 done, or allowed; 1 no: the payload is refused, the person declined,
or the check failed; 2 wrong usage or unreadable input, with one line on standard error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from sglang_lp.errors import SglangLpError

__all__ = ["main"]

#: Modules of this package, in the order of the help text. Each has ``add(verbs)``, which adds its
#: parser and sets ``run``, a function from the parsed arguments to the exit code.
_VERBS = ("list", "payload", "resolve", "inspect", "allow", "serve", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after the program's name; those of this process if ``None``.

    Returns:
        The exit code.

    Raises:
        SystemExit: ``--help`` (0), or arguments that do not parse (2).
    """
    parser = argparse.ArgumentParser(
        prog="sglang-lp", description="Custom logit processors for SGLang that are safe to serve."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in _VERBS:
        importlib.import_module(f"{__name__}.{verb}").add(verbs)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SglangLpError as error:
        print(f"sglang-lp {arguments.verb}: {error}", file=sys.stderr)  # noqa: T201 - the interface
        return 2
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
