"""``sglang-lp trace``: show a processor's edits to an answer, token by token."""

from __future__ import annotations

import argparse
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp.cli import policy_option
from sglang_lp.cli.http import base_of, request, told
from sglang_lp.cli.terminal import progress, say
from sglang_lp.errors import PayloadRefused, RequestError, SglangLpError, UsageError, shown
from sglang_lp.trust import Verifier
from sglang_lp.wire.names import MAX_TOKENIZER_BYTES, TOKENIZER_PATH

if TYPE_CHECKING:
    from sglang_lp.served_model import ServedModel
    from sglang_lp.trace import Trace

#: Largest file that is read.
_MAX_BYTES = 256 << 20


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "trace",
        help="show a processor's edits to an answer, token by token",
        description="Replay a request's processor over its answer, and show its edits at each "
        "token. Exit code 1 if the answer contradicts the request, for example because the server "
        "ran without the processor.",
    )
    parser.add_argument("request", metavar="REQUEST", help="a file with the request's JSON")
    parser.add_argument("answer", metavar="ANSWER", help="a file with the answer's JSON")
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="the model's directory; without a tokenizer, tokens are shown as numbers",
    )
    model.add_argument("--url", help="URL of the server, which sends its tokenizer")
    parser.add_argument(
        "--beside",
        nargs=2,
        metavar=("REQUEST", "ANSWER"),
        help="a second request and its answer, to be shown side by side",
    )
    parser.add_argument(
        "--choice",
        type=int,
        default=0,
        metavar="N",
        help="number of the answer, if there are several (default: 0, the first)",
    )
    parser.add_argument("--format", choices=("html", "text", "json"), default="html")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write (default: ANSWER.html for html, else standard output)",
    )
    policy_option.add_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_lp.trace import (
        check_packages,
        read_exchange,
        trace_answer,
        write_lines,
        write_page,
    )

    check_packages()  # before the tokenizer's own package is missed
    if arguments.beside and arguments.format != "html":
        raise UsageError(
            "--beside: expected --format html; without it, trace each answer by itself"
        )
    policy = policy_option.choose(arguments.policy)
    catalogues = policy.open_catalogues().now if policy.catalogues else {}
    with progress("reading the tokenizer"):
        served = _model(arguments)._replace(
            catalogues=catalogues, watermark=policy.read_watermark()
        )
    verifier = Verifier(policy)

    def trace(request: str, answer: str) -> Trace:
        exchange = read_exchange(_read(request), _read(answer), served.tokenizer, arguments.choice)
        payload = exchange.payload
        processor = None if payload is None else find_class(verifier, payload)
        return trace_answer(processor, exchange, served)

    with progress("replaying the answer"):
        found = trace(arguments.request, arguments.answer)
        beside = trace(*arguments.beside) if arguments.beside else None
    output = arguments.output
    if arguments.format == "html":
        title = f"Trace of {Path(arguments.answer).name}"
        written = write_page(found, beside, title)
        output = output or f"{arguments.answer}.html"
    elif arguments.format == "json":
        written = orjson.dumps(found.to_dict()).decode() + "\n"
    else:
        written = write_lines(found)
    if output is None:
        say(written.removesuffix("\n"))
    else:
        _write(output, written)
    return 1 if found.problems else 0


def _model(arguments: argparse.Namespace) -> ServedModel:
    """Return the model of a directory, of a server, or the unknown model.

    Raises:
        SglangLpError: The server does not send its tokenizer.
    """
    from sglang_lp.client.models import load_model

    if arguments.url is None:
        return load_model(arguments.tokenizer)
    return fetch_model(base_of(arguments.url, "--url"))


def fetch_model(url: str) -> ServedModel:
    """Return the model that a server describes, with its tokenizer.

    Args:
        url: As :func:`base_of` returned it.

    Raises:
        SglangLpError: The server does not send its tokenizer.
    """
    from sglang_lp.client.models import read_model

    answer = request("GET", url, TOKENIZER_PATH, most=MAX_TOKENIZER_BYTES + (1 << 20))
    if answer.status != HTTPStatus.OK:
        raise SglangLpError(
            f"{TOKENIZER_PATH}: expected the server's tokenizer, got {told(answer)}; routers and "
            "older versions of sglang-lp have none: give a worker's URL, or --tokenizer DIR"
        )
    return read_model(answer.body)


def find_class(verifier: Verifier, payload: Any) -> type:
    """Return the class of a request's payload.

    Raises:
        PayloadRefused: The policy does not allow it.
    """
    try:
        return verifier.lookup(payload).processor
    except PayloadRefused as error:
        why = f"{error}; give the server's policy with --policy FILE"
        raise PayloadRefused(why, reason=error.reason) from None


def _read(name: str) -> Any:
    try:
        with Path(name).open("rb") as file:
            read = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{shown(name)}: cannot be read: {error.strerror}") from error
    if len(read) > _MAX_BYTES:
        raise RequestError(f"{shown(name)}: expected at most {_MAX_BYTES >> 20} MiB, got more")
    try:
        return orjson.loads(read)
    except orjson.JSONDecodeError as error:
        raise RequestError(
            f"{shown(name)}: expected JSON: {shown(str(error), 200)}; of a stream, put the last "
            "event into the file"
        ) from None


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"--output: {shown(name)} cannot be written: {error.strerror}"
        ) from error
    say(name)
