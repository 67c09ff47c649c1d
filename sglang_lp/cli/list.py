"""``sglang-lp list``: the built-in processors, or one of them with its parameters."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import orjson

from sglang_lp.cli.terminal import say, say_json
from sglang_lp.errors import SglangLpError, UsageError, shown

#: Columns of a terminal by default.
_WIDTH = 80


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "list",
        help="print the built-in processors, or the parameters of one",
        description="Print the names of the built-in processors. With a name, print its "
        "custom_params and an example.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a built-in processor")
    parser.add_argument("--json", action="store_true", help="print JSON, with all parameters")
    parser.add_argument(
        "--url", help="print the processors and profiles that this server allows instead"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_lp import builtins
    from sglang_lp.cli.describe import summary

    if arguments.url is not None:
        if arguments.name:
            raise UsageError("--url: expected no NAME; it lists a server")
        return _list_server(arguments.url, as_json=arguments.json)
    names = sorted(builtins.__all__, key=str.lower)
    if arguments.name:
        names = [_known(arguments.name)]
    found = [getattr(builtins, name) for name in names]
    if arguments.json:
        said = [_described(processor) for processor in found]
        say_json(said[0] if arguments.name else said)
        return 0
    for processor in found:
        say(processor.__name__)
        for line in _filled(summary(processor)):
            say(line)
    for line in _lines(found[0]) if arguments.name else ("", "sglang-lp list NAME shows one."):
        say(line)
    return 0


def _known(name: str) -> str:
    """Return the name of a built-in.

    Raises:
        UsageError: There is none of this name.
    """
    from sglang_lp import builtins
    from sglang_lp.client.attachment import suggest_builtin

    if name in builtins.__all__:
        return name
    hint = suggest_builtin(name, "sglang-lp list shows their names")
    raise UsageError(f"NAME: expected a built-in, got {shown(name)}; {hint}")


def _lines(processor: type[Any]) -> Iterator[str]:
    from sglang_lp.cli.describe import list_parameters

    yield ""
    for one in list_parameters(processor):
        default = one.default if one.default == "required" else f"default {one.default}"
        yield from _filled(f"{one.name}: {one.kind}, {default}", "  ", hang=4)
        yield from _filled(one.about.replace("`", ""), "      ")
    yield ""
    example = orjson.dumps(processor.example).decode()
    if len(example) > _WIDTH - len("  example: "):
        example = orjson.dumps(processor.example, option=orjson.OPT_INDENT_2).decode()
    yield from f"example: {example}".splitlines()


def _filled(text: str, indent: str = "    ", hang: int = 0) -> list[str]:
    return wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + " " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _described(processor: type[Any]) -> dict[str, Any]:
    from sglang_lp.cli.describe import list_parameters, summary

    return {
        "name": processor.__name__,
        "summary": summary(processor),
        "params": {
            one.name: {"type": one.kind, "default": one.default, "about": one.about}
            for one in list_parameters(processor)
        },
        "example": processor.example,
    }


def read_list(url: str) -> dict[str, Any]:
    """Ask a server for its processors and profiles, and return the answer of ``GET /sglang_lp``.

    Args:
        url: As ``base_of`` returned it.

    Raises:
        SglangLpError: The server does not answer with a list.
    """
    from sglang_lp.cli.http import request, told
    from sglang_lp.wire.names import LIST_PATH

    answer = request("GET", url, LIST_PATH)
    body = answer.body
    if answer.status not in {200, 503} or not isinstance(body, dict) or "guarded" not in body:
        raise SglangLpError(
            f"{LIST_PATH}: expected a list of processors, got {told(answer)}; the server is not "
            "guarded, or is a router or an older sglang-lp: try a worker's own URL"
        )
    return body


def _list_server(url: str, *, as_json: bool) -> int:
    """Print what a server allows; return 1 if its guard is not live."""
    from sglang_lp.cli.http import base_of

    body = read_list(base_of(url, "--url"))
    if as_json:
        say_json(body)
        return 0 if body["guarded"] else 1
    state = "guarded" if body["guarded"] else "NOT GUARDED: a hook is lost"
    say(f"{state}, sglang-lp {body['version']}, SGLang {body['sglang']}")
    if not body.get("enabled", True):  # servers before 0.4.0 do not tell it
        say("PROCESSORS ARE OFF: the server was started without --enable-custom-logit-processor")
    say(f"policy {body['policy']}")
    for one in body["processors"]:
        say(one["name"])
        parameters = one["parameters"]
        names = ["parameters of its own"] if parameters is None else map(_marked, parameters)
        for line in _filled(", ".join(names) or "no parameters"):
            say(line)
    for one in body["profiles"]:
        say(f"profile {one['name']}")
        for line in _filled(f"may set {', '.join(one['may_set']) or 'nothing'}"):
            say(line)
    return 0 if body["guarded"] else 1


def _marked(parameter: dict[str, Any]) -> str:
    return f"{parameter['name']}{' (required)' if parameter['required'] else ''}"
