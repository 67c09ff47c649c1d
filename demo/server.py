"""A guarded SGLang server on this machine, started as an operator would start it."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.sentences import write_catalogue
from support.cpu import rotary, speculation
from support.plugins import PROBES
from support.servers.server import launch
from support.settings import CPU_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ARGUMENTS", "DRAFTS", "POLICY", "serve", "serve_speaking"]

#: SGLang's arguments for the demo model. The scheduler runs with its defaults, so overlap
#: scheduling is on.
ARGUMENTS: Mapping[str, Any] = {
    **CPU_ARGUMENTS,
    "max_total_tokens": 16384,
    "grammar_backend": "xgrammar",
}
#: SGLang's arguments for drafts from n-grams of the text generated before.
DRAFTS: Mapping[str, Any] = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": 8,
    "speculative_ngram_max_bfs_breadth": 1,
}
POLICY = Path(__file__).with_name("policy.toml")
_SERVE = (sys.executable, "-m", "sglang_lp", "serve")


@contextmanager
def serve(model: Path, *, drafts: bool = False, **more: Any) -> Iterator[str]:
    """Run `sglang-lp serve` with the demo's policy on a free port of the loopback interface.

    Args:
        model: Directory of the checkpoint.
        drafts: Whether it decodes speculatively.
        more: Further arguments of SGLang's.

    Yields:
        The server's base URL, once it answers.

    Raises:
        EngineError: It did not start; the message holds the end of its log.

    """
    write_catalogue(model)
    arguments = {**ARGUMENTS, **more, "enable_custom_logit_processor": None}  # "serve" adds it
    paths, variables = [], {}
    if drafts:
        arguments |= DRAFTS
        paths = [PROBES]
        variables = {
            **speculation.VARIABLES,
            "SGLANG_PLUGINS": f"sglang_lp,{speculation.NAME}",
        }
    with (
        tempfile.TemporaryDirectory() as scratch,
        launch(
            model,
            Path(scratch),
            arguments,
            command=(*_SERVE, "--policy", POLICY, "--"),
            paths=paths,
            variables=variables,
        ) as server,
    ):
        yield server.url


@contextmanager
def serve_speaking(model: Path) -> Iterator[str]:
    """Run `sglang-lp serve` with a model that speaks, whose vocabulary has no thinking block.

    Args:
        model: Directory of the checkpoint.

    Yields:
        The server's base URL, once it answers.

    Raises:
        EngineError: It did not start; the message holds the end of its log.

    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        launch(
            model,
            Path(scratch),
            {**ARGUMENTS, "enable_custom_logit_processor": None},
            command=(*_SERVE, "--"),
            paths=[PROBES],
            variables={
                "SGLANG_PLUGINS": f"sglang_lp,{rotary.NAME}",
                "OMP_NUM_THREADS": str(os.cpu_count() or 1),
            },
        ) as server,
    ):
        yield server.url
