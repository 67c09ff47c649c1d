"""``sglang-lp doctor --url --matrix``: formats, tools, streams and thinking, each asked for once.

Every combination is one request of at most :data:`TOKENS` tokens: as a stock client sends it, and
with this toolkit's fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import orjson

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.cli.http import HttpAnswer, base_of, request, told
from sglang_lp.cli.matrix_judge import (
    BUDGET,
    CALLING,
    CHAT,
    COMPLETIONS,
    REGEX,
    SCHEMA,
    TOOL,
    Cell,
    Reply,
    Verdict,
    judge,
    thinks_always,
)
from sglang_lp.errors import SglangLpError, shown
from sglang_lp.params import WHOLE
from sglang_lp.wire.names import POLICY_HEADER, REPORT

#: Most tokens of an answer.
TOKENS = 128
#: Requests at once.
_TOGETHER = 8
_OK = 200
_PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}
_QUESTION = "Which sheep do you see? Name the color of each."
#: Arguments of SGLang's that the matrix depends on, as ``/server_info`` names them.
_ARGUMENTS = {
    "reasoning_parser": "reasoning parser",
    "tool_call_parser": "tool-call parser",
    "speculative_algorithm": "drafts",
    "grammar_backend": "grammars",
}
#: Columns of the table: thinking, and whose fields.
_COLUMNS = {
    ("off", "stock"): "no thinking",
    ("off", "toolkit"): f"with {WHOLE}",
    ("on", "stock"): "thinking",
    ("on", "toolkit"): f"with {WHOLE}",
    ("budget", "toolkit"): "with a budget",
}
_ALWAYS = (
    "Every chat answer has thoughts, also to requests that turn thinking off: this server always "
    "thinks, and that is not counted as a fault."
)


class Served(NamedTuple):
    """A server, as far as it says.

    Attributes:
        url: As :func:`base_of` returned it.
        model: Name of its model.
        is_guarded: Whether it runs this toolkit.
        version: Of SGLang; ``None`` if it does not say.
        arguments: Those of :data:`_ARGUMENTS`; empty if it does not say.
    """

    url: str
    model: str
    is_guarded: bool
    version: str | None
    arguments: Mapping[str, str | None]


class Result(NamedTuple):
    """One request of the matrix, its reply and the verdict."""

    cell: Cell
    reply: Reply
    verdict: Verdict

    def line(self) -> dict[str, Any]:
        """Return the result for a program."""
        came, ok = self.verdict
        more = {"came": came, "ok": ok, "finish": self.reply.finish, "error": self.reply.error}
        return {**self.cell._asdict(), **more}


def look_at(url: str) -> Served:
    """Read what a server says about itself.

    Raises:
        UsageError: It is not an HTTP URL.
        SglangLpError: It does not answer, or names no model.
    """
    url = base_of(url, "--url")
    models = request("GET", url, "/v1/models")
    try:
        name = str(models.body["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise SglangLpError(f"/v1/models names no model: {told(models)}") from None
    info = request("GET", url, "/server_info")
    said = info.body if info.status == _OK and isinstance(info.body, dict) else {}
    arguments = {name: said[name] for name in _ARGUMENTS if name in said}
    is_guarded = POLICY_HEADER.lower() in models.headers
    return Served(url, name, is_guarded, said.get("version"), arguments)


def ask(served: Served) -> list[Result]:
    """Send every request of the matrix, a few at once."""
    asked = cells(served)
    with ThreadPoolExecutor(_TOGETHER) as pool:
        answered = list(zip(asked, pool.map(partial(_ask, served), asked), strict=True))
    always = thinks_always(answered)
    return [Result(cell, reply, judge(cell, reply, always=always)) for cell, reply in answered]


def cells(served: Served) -> list[Cell]:
    """Return the requests for a server: no thinking without a parser, stock ones without us."""
    found = [
        *(
            Cell(CHAT, *rest)
            for rest in product(
                ("none", "json_schema", "regex"),
                ("no tools", "none", "auto", *CALLING),
                ("off", "on", "budget"),
                ("stock", "toolkit"),
                (False, True),
            )
        ),
        *(
            Cell(COMPLETIONS, kind, "no tools", "off", fields, stream)
            for kind in ("json_schema", "regex")
            for fields in ("stock", "toolkit")
            for stream in (False, True)
        ),
    ]
    thinks = served.arguments.get("reasoning_parser", "unknown") is not None
    return [
        cell
        for cell in found
        if (cell.thinking, cell.fields) in _COLUMNS
        and (thinks or cell.thinking == "off")
        and (cell.fields == "stock" or served.is_guarded)
        and (cell.fields == "stock" or cell.has_grammar or cell.thinking == "budget")
        and (cell.tools != "loose" or cell.format == "none")
    ]


def body_of(cell: Cell, model: str) -> dict[str, Any]:
    """Return the request of a cell."""
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": TOKENS}
    body["stream"] = cell.stream
    if cell.endpoint == COMPLETIONS:
        body["prompt"] = _QUESTION
        if cell.format == "json_schema":
            body["json_schema"] = orjson.dumps(SCHEMA).decode()
    else:
        thinks = cell.thinking != "off"
        body["messages"] = [{"role": "user", "content": _QUESTION}]
        body["chat_template_kwargs"] = {"enable_thinking": thinks, "thinking": thinks}
        body.update(_tools_of(cell))
        if cell.format == "json_schema":
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "sheep", "schema": SCHEMA},
            }
    if cell.format == "regex":
        body["regex"] = REGEX
    if cell.fields == "toolkit":
        body["return_meta_info"] = True
        body["custom_params"] = {WHOLE: True} if cell.has_grammar else {}
        if cell.thinking == "budget":
            body["custom_logit_processor"] = ThinkingBudgetLogitProcessor.to_str()
            body["custom_params"]["thinking_budget"] = BUDGET
    return body


def _tools_of(cell: Cell) -> dict[str, Any]:
    if cell.tools == "no tools":
        return {}
    loose = cell.tools == "loose"
    function = {"name": TOOL, "description": "Counts sheep.", "parameters": SCHEMA}
    named = {"type": "function", "function": {"name": TOOL}}
    return {
        "tools": [{"type": "function", "function": {**function, "strict": not loose}}],
        "tool_choice": {"named": named, "loose": "required"}.get(cell.tools, cell.tools),
    }


def _ask(served: Served, cell: Cell) -> Reply:
    try:
        return read(request("POST", served.url, _PATHS[cell.endpoint], body_of(cell, served.model)))
    except SglangLpError as error:
        return Reply(0, error=str(error))


def read(answer: HttpAnswer) -> Reply:
    """Return the parts of an answer of OpenAI's endpoints, whole or streamed.

    Raises:
        SglangLpError: It is not such an answer.
    """
    if answer.status != _OK:
        return Reply(answer.status, error=_message(answer.body))
    try:
        bodies = [answer.body] if isinstance(answer.body, dict) else [*_events(answer.body)]
        for body in bodies:
            if "error" in body:
                return Reply(int(body["error"].get("code") or 0), error=_message(body))
        return _joined([choice for body in bodies for choice in body.get("choices") or ()])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SglangLpError(f"expected an answer of OpenAI's form, got {told(answer)}") from None


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n"):  # a text may have U+2028, where splitlines splits as well
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield orjson.loads(data)


def _joined(choices: Iterable[Mapping[str, Any]]) -> Reply:
    content, thoughts, finish, blocks = "", "", None, ()
    calls: dict[int, list[str]] = {}
    for choice in choices:
        part = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        content += part.get("content") or ""
        thoughts += part.get("reasoning_content") or ""
        for number, call in enumerate(part.get("tool_calls") or ()):
            index = call["index"] if call.get("index") is not None else number
            known = calls.setdefault(index, ["", ""])
            known[0] += call["function"].get("name") or ""
            known[1] += call["function"].get("arguments") or ""
        finish = choice.get("finish_reason") or finish
        report = (choice.get("meta_info") or {}).get(REPORT) or {}
        blocks = tuple(one["tokens"] for one in report.get("thinking") or ()) or blocks
    return Reply(
        _OK, content, thoughts, tuple((name, text) for name, text in calls.values()), finish, blocks
    )


def _message(body: Any) -> str:
    if isinstance(body, dict):
        body = body.get("error", body)
        body = body.get("message", body) if isinstance(body, dict) else body
    return shown(str(body), 300)[1:-1]


def passed(results: Iterable[Result]) -> bool:
    """Tell whether all that was asked for with this toolkit's fields came, or was refused."""
    return all(
        result.verdict.ok or result.verdict.came == "refused"
        for result in results
        if result.cell.fields == "toolkit"
    )


def describe(served: Served) -> str:
    """Return in one line what is served."""
    said = [
        f"{text} {served.arguments[name] or 'none'}"
        for name, text in _ARGUMENTS.items()
        if name in served.arguments
    ]
    return ", ".join([f"SGLang {served.version or 'of an unknown version'}", *said])


def remarks(results: Iterable[Result]) -> list[str]:
    """Return sentences about the server that the results show."""
    if thinks_always((cell, reply) for cell, reply, _ in results):
        return [_ALWAYS]
    return []


def table(results: Sequence[Result]) -> list[list[str]]:
    """Return the results as rows of texts, the first of which has the names of the columns.

    A streamed answer is told only where it differs from the answer without a stream. A verdict that
    is not ``ok`` has an exclamation mark.
    """
    rows: dict[tuple[str, str, str], dict[tuple[str, str], list[Verdict]]] = {}
    for cell, _, verdict in results:
        row = rows.setdefault((cell.endpoint, cell.format, cell.tools), {})
        row.setdefault((cell.thinking, cell.fields), []).append(verdict)
    used = [column for column in _COLUMNS if any(column in row for row in rows.values())]
    head = ["endpoint", "format", "tool_choice", *(_COLUMNS[column] for column in used)]
    return [
        head,
        *(
            [*names, *(_shown(row.get(column, ())) for column in used)]
            for names, row in rows.items()
        ),
    ]


def _shown(verdicts: Sequence[Verdict]) -> str:
    words = list(dict.fromkeys(f"{'' if ok else '! '}{came}" for came, ok in verdicts))
    return "; streamed: ".join(words)


def errors(results: Iterable[Result]) -> list[str]:
    """Return the messages of errors, each once."""
    return list(dict.fromkeys(one.reply.error for one in results if one.reply.error))
