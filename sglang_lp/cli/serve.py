"""``sglang-lp serve``: start SGLang, provided that the guard is in place everywhere."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sglang_lp.cli import policy_option
from sglang_lp.errors import InstallError, UsageError
from sglang_lp.server.startup.installation import POLICY_VARIABLE
from sglang_lp.server.startup.serve import check_environment, run
from sglang_lp.server.versions import NEWEST, OLDEST

_FLAG = "--enable-custom-logit-processor"

#: SGLang's arguments for a small model without a GPU: SGLang's own defaults need an extra build of
#: its kernels, and take most of the memory for the KV cache.
_ON_CPU = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--max-total-tokens": "8192",
    "--disable-cuda-graph": None,
}


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "serve",
        usage="%(prog)s [-h] [--policy FILE] [--cpu] -- ARGUMENTS...",
        help="start a guarded SGLang server",
        description=(
            "Start an SGLang server that runs only the custom logit processors that its policy "
            f"allows. Everything after -- goes to SGLang; {_FLAG} is added."
        ),
    )
    policy_option.add_option(parser)
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="to try a small model without a GPU: adds " + " ".join(_words(_ON_CPU)),
    )
    parser.add_argument(
        "sglang_args",
        nargs=argparse.REMAINDER,
        metavar="-- ARGUMENTS",
        help="SGLang's own arguments, such as --model-path",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    sglang_args = arguments.sglang_args
    if sglang_args[:1] == ["--"]:
        sglang_args = sglang_args[1:]
    if not sglang_args:
        raise UsageError(
            "ARGUMENTS: expected SGLang's own after --, for example: "
            "sglang-lp serve -- --model-path Qwen/Qwen3-8B"
        )
    if find_spec("sglang") is None:
        raise InstallError(
            "SGLang: expected it in this environment, found none; pip install 'sglang-lp[sglang]' "
            f"(SGLang {OLDEST} to {NEWEST})"
        )
    policy_option.check(policy_option.choose(arguments.policy))  # an error now, not after a minute
    if arguments.policy is not None:
        os.environ[POLICY_VARIABLE] = str(Path(arguments.policy).resolve())
    if arguments.cpu:
        given = {word.partition("=")[0] for word in sglang_args}
        added = {name: value for name, value in _ON_CPU.items() if name not in given}
        sglang_args = [*sglang_args, *_words(added)]
    if _FLAG not in sglang_args:
        sglang_args = [*sglang_args, _FLAG]
    check_environment()
    run(sglang_args)
    return 0


def _words(arguments: Mapping[str, str | None]) -> list[str]:
    """Return arguments as words of a command line."""
    return [word for name, value in arguments.items() for word in (name, value) if word is not None]
