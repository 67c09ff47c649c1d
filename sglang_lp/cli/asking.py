"""What ``sglang-lp doctor --url`` asks a running server, and what it makes of the answers.

Everything is asked from outside, as any client would, through whatever stands between.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import orjson

from sglang_lp import wire
from sglang_lp.builtins import ForcedSequenceLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.delimiters import PAIRS
from sglang_lp.client.answers import HEADER, KEY
from sglang_lp.errors import SglangLpError, UsageError, shown

__all__ = ["Answer", "Skipped", "checks"]

_SECONDS = 120
#: What is forced, and looked for in the answer.
_WORDS = "The doctor was here."
_OK, _BAD_REQUEST = 200, 400
#: SGLang's own class by name, with a step before it that no to_str() writes: a server that
#: unpickles accepts it and bans no token; a guarded one takes exact payloads only.
_ODD_REFERENCE = (
    b"\x80\x04N0csglang.srt.sampling.custom_logit_processor\nDisallowedTokensLogitsProcessor\n."
)


class Skipped(Exception):
    """What was asked for is not to be had there, and says why."""


class Answer(NamedTuple):
    """An HTTP answer.

    Attributes:
        status: HTTP status.
        headers: Lower-case names.
        body: Parsed JSON, or text.
    """

    status: int
    headers: Mapping[str, str]
    body: Any


def checks(url: str) -> list[tuple[str, Callable[[], str]]]:
    """Return the checks of a server, each with a function that returns what was found.

    The functions raise ``SglangLpError`` if something is wrong, ``Skipped`` if it cannot be told.

    Args:
        url: Where the server, or what stands before it, listens.

    Raises:
        UsageError: That is no such URL.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url: expected http://... or https://..., got {shown(url)}")
    url = url.rstrip("/").removesuffix("/v1")
    return [
        ("guard", partial(_check_guard, url)),
        *(
            (f"{path} forced text", partial(_check_forced, url, path, ask))
            for path, ask in _ENDPOINTS.items()
        ),
        ("/generate thinking budget", partial(_check_budget, url)),
    ]


def _check_guard(url: str) -> str:
    payload = wire.encode(_ODD_REFERENCE)
    answer = _post(url, "/generate", _generate(payload, {"token_ids": []}))
    text = shown(str(answer.body), 400)
    if answer.status == _OK:
        raise SglangLpError(
            "the server took a payload that no allowed class writes, so it unpickles what clients "
            "send, or something dropped the payload on the way; start it with sglang-lp serve"
        )
    if "custom_logit_processor: expected a class that this server allows" in text:
        return "a payload that a stock server would unpickle is refused"
    if "custom logit processor" in text.lower() and "enable" in text.lower():
        raise SglangLpError(
            "the server takes no custom logit processors: start it with sglang-lp serve, or add "
            "--enable-custom-logit-processor"
        )
    raise SglangLpError(f"expected a refusal of sglang-lp, got HTTP {answer.status}: {text}")


def _check_forced(url: str, path: str, ask: Callable[[str, Any], dict[str, Any]]) -> str:
    body = ask(ForcedSequenceLogitProcessor.to_str(), {"text": _WORDS})
    if path != "/generate":
        body["model"] = _model(url)
    answer = _post(url, path, body)
    if answer.status != _OK:
        raise SglangLpError(_refused(answer))
    if _WORDS in _text(answer.body):
        named = answer.headers.get(HEADER.lower())
        lost = "" if named else f"; the header {HEADER} was lost on the way"
        return f"comes out as it was forced{lost}"
    named = answer.headers.get(HEADER.lower())
    if named is None:
        raise SglangLpError(
            f"not forced, and no header {HEADER}: the server does not run sglang-lp here"
        )
    raise SglangLpError(
        "not forced, and the server never saw the request's custom_logit_processor: "
        f"something between dropped it (the server ran: {named})"
    )


def _check_budget(url: str) -> str:
    opening = "".join(start for start, _ in PAIRS)
    body = _generate(ThinkingBudgetLogitProcessor.to_str(), {"thinking_budget": 0})
    answer = _post(url, "/generate", {**body, "text": opening})
    if answer.status == _BAD_REQUEST and "thinking delimiters" in str(answer.body):
        raise Skipped("the served model's tokenizer has no known pair of thinking delimiters")
    if answer.status != _OK:
        raise SglangLpError(_refused(answer))
    blocks = answer.body.get("meta_info", {}).get(KEY, {}).get("thinking")
    if not blocks:
        raise SglangLpError(f'the answer has no report: expected meta_info["{KEY}"]["thinking"]')
    if blocks[0]["ended"] != "budget":
        raise SglangLpError(f"a budget of 0 did not end the open block: {blocks[0]}")
    return "a budget of 0 ends an open block at once"


def _generate(payload: str, params: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": 24, "custom_params": params}
    return {"text": "Hello.", "sampling_params": sampling, "custom_logit_processor": payload}


def _completion(payload: str, params: Any) -> dict[str, Any]:
    return {"prompt": "Hello.", **_openai(payload, params)}


def _chat(payload: str, params: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello."}], **_openai(payload, params)}


def _openai(payload: str, params: Any) -> dict[str, Any]:
    return {
        "temperature": 0,
        "max_tokens": 24,
        "custom_logit_processor": payload,
        "custom_params": params,
    }


_ENDPOINTS: Mapping[str, Callable[[str, Any], dict[str, Any]]] = {
    "/generate": _generate,
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
}


def _model(url: str) -> str:
    answer = _request(url, "/v1/models", None)
    try:
        name: str = answer.body["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        raise SglangLpError(f"/v1/models names no model: {_refused(answer)}") from None
    return name


def _text(body: Any) -> str:
    """Return all text of an answer: what came of a reasoning parser, too."""
    if "text" in body:
        return str(body["text"])
    found = []
    for choice in body.get("choices", ()):
        message = choice.get("message") or choice
        found += [message.get(name) or "" for name in ("reasoning_content", "content", "text")]
    return "".join(found)


def _refused(answer: Answer) -> str:
    return f"HTTP {answer.status}: {shown(str(answer.body), 400)}"


def _post(url: str, path: str, body: Mapping[str, Any]) -> Answer:
    return _request(url, path, orjson.dumps(body))


def _request(url: str, path: str, data: bytes | None) -> Answer:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url + path, data, headers)  # noqa: S310 - checked before
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310
            return _answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        return _answer(error.code, error.headers, error.read())
    except OSError as error:
        raise SglangLpError(f"{path}: no answer: {error}") from error


def _answer(status: int, headers: Any, content: bytes) -> Answer:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = content.decode(errors="replace")
    return Answer(status, {name.lower(): value for name, value in headers.items()}, body)
