"""The command line: ``sglang-lp VERB``, one module for each verb.

Exit codes of every verb: 0 done, or allowed; 1 no: the payload is refused, the person declined,
or the check failed; 2 wrong usage, unreadable input, or output that cannot be written although all
else went well, with one line on standard error; 130 interrupted at the keyboard. A closed pipe
changes none of them.
"""

from __future__ import annotations

import argparse
import importlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from sglang_lp.cli import terminal
from sglang_lp.cli.parser import Parser
from sglang_lp.errors import PayloadRefused, SglangLpError, shown

__all__ = ["main"]

#: Modules of this package, in the order of the help text. Each has ``add(verbs)``, which adds its
#: parser and sets ``run``, a function from the parsed arguments to the exit code.
_VERBS = (
    *("new", "list", "payload", "resolve", "inspect", "allow", "serve", "doctor", "roll", "trace"),
    *("try", "catalogue", "watermark", "schema"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after the program's name; those of this process if ``None``.

    Returns:
        The exit code.

    Raises:
        SystemExit: Arguments that do not parse (2).
    """
    parser = Parser(
        prog="sglang-lp",
        description="Custom logit processors for SGLang that are safe to serve.",
        epilog="Start a server: sglang-lp serve -- --model-path Qwen/Qwen3-8B. "
        "Everything after -- goes to SGLang. "
        "Exit codes: 0 done, or allowed; 1 refused, declined or failed; 2 wrong usage, or "
        "another error; 130 interrupted.",
    )
    parser.add_argument("--version", action=_Version, help="print the versions, and exit")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        metavar="SHELL",
        help='print the completions for a shell, such as bash (needs "sglang-lp[completion]")',
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in _VERBS:
        importlib.import_module(f"{__name__}.{verb}").add(verbs)
    with terminal.printing() as lost:
        code = _run(parser, verbs.choices, argv)
    return 2 if lost and code == 0 else code


def _run(
    parser: argparse.ArgumentParser,
    verbs: Mapping[str, argparse.ArgumentParser],
    argv: Sequence[str] | None,
) -> int:
    try:
        arguments, unknown = parser.parse_known_args(argv)
    except SystemExit as end:
        if end.code:
            raise
        return 0  # --help, --version, --print-completion
    if unknown:  # parse_args() would show the usage of sglang-lp instead of the verb's
        verbs[arguments.verb].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = arguments.run(arguments)
    except SglangLpError as error:
        terminal.complain(f"sglang-lp {arguments.verb}: {error}")
        return 1 if isinstance(error, PayloadRefused) else 2
    except KeyboardInterrupt:
        return 130
    return code


class _Version(argparse.Action):
    """Prints the versions that a report of a problem needs."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, nargs=0)

    def __call__(self, parser: argparse.ArgumentParser, *_args: Any, **_kwargs: Any) -> None:
        try:
            sglang = f"SGLang {metadata.version('sglang')}"
        except metadata.PackageNotFoundError:
            sglang = "no SGLang"
        own = metadata.version("sglang-lp")
        terminal.say(f"sglang-lp {own} ({sglang}, Python {platform.python_version()})")
        parser.exit()


class _Completion(argparse.Action):
    """Prints a script that completes verbs and options in a shell."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        shell: Any,
        _option: str | None = None,
    ) -> None:
        try:
            import shtab
        except ImportError:
            parser.error('--print-completion: expected shtab: pip install "sglang-lp[completion]"')
        if shell not in shtab.SUPPORTED_SHELLS:
            known = ", ".join(shtab.SUPPORTED_SHELLS)
            parser.error(f"--print-completion: expected one of {known}, got {shown(shell)}")
        terminal.say(shtab.complete(parser, shell))
        parser.exit()
