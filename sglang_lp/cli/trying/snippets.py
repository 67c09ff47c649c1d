"""A request as a command or a program to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pprint import pformat
from typing import Any

import orjson

#: The endpoints of SGLang that the page asks, as the ``openai`` client calls them, and the text of
#: an answer there.
CALLS = {
    "/v1/chat/completions": ("chat.completions", "message.content"),
    "/v1/completions": ("completions", "text"),
}
#: Fields that the ``openai`` client does not know.
_EXTRA = ("custom_logit_processor", "custom_params")


def write_snippets(url: str, path: str, body: Mapping[str, Any], *, key: bool) -> dict[str, str]:
    """Return a request as ``curl``, for the ``openai`` client, and for Python's own library.

    Args:
        url: URL of the server, without the path.
        path: A key of :data:`CALLS`.
        body: The JSON of the request.
        key: Whether the request needs the key of ``OPENAI_API_KEY``, which is named, not shown.
    """
    return {
        "curl": "".join(_curl(url, path, body, key=key)),
        "openai": "".join(_openai(url, path, body, key=key)),
        "python": "".join(_python(url, path, body, key=key)),
    }


def _curl(url: str, path: str, body: Mapping[str, Any], *, key: bool) -> Iterator[str]:
    yield f"curl {shlex.quote(url + path)} -H 'Content-Type: application/json' \\\n"
    if key:
        yield '  -H "Authorization: Bearer $OPENAI_API_KEY" \\\n'
    written = orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()
    yield "  -d " + shlex.quote(written) + "\n"


def _openai(url: str, path: str, body: Mapping[str, Any], *, key: bool) -> Iterator[str]:
    call, text = CALLS[path]
    access = "" if key else ', api_key="none"'
    yield "from openai import OpenAI\n\n"
    yield f"client = OpenAI(base_url={url + '/v1'!r}{access})\n"
    yield f"answer = client.{call}.create(\n"
    for name, value in body.items():
        if name not in _EXTRA:
            yield f"    {name}={_literal(value, len(name) + 5)},\n"
    extra = {name: body[name] for name in _EXTRA if name in body}
    yield f"    extra_body={_literal(extra, 15)},\n)\n"
    yield f"print(answer.choices[0].{text})\n"


def _python(url: str, path: str, body: Mapping[str, Any], *, key: bool) -> Iterator[str]:
    yield "import json\n"
    if key:
        yield "import os\n"
    yield f"import urllib.request\n\nbody = {_literal(body, 7)}\n"
    yield 'headers = {"Content-Type": "application/json"}\n'
    if key:
        yield 'headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]\n'
    yield f"url = {url + path!r}\n"
    yield "request = urllib.request.Request(url, json.dumps(body).encode(), headers)\n"
    yield "with urllib.request.urlopen(request) as answer:\n"
    yield '    print(json.load(answer)["choices"][0])\n'


def _literal(value: Any, indent: int) -> str:
    """Write a value as Python, its further lines below its first."""
    return pformat(value, width=96 - indent, sort_dicts=False).replace("\n", "\n" + " " * indent)
