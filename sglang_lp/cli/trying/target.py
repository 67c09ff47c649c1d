"""The server that is tried: what it offers, and its answers with and without a processor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import msgspec

from sglang_lp.cli.http import HttpAnswer, base_of, request, told
from sglang_lp.cli.list import read_list
from sglang_lp.cli.server_checks import model_name
from sglang_lp.cli.trace import fetch_model, find_class
from sglang_lp.cli.trying.form import make_form
from sglang_lp.cli.trying.snippets import write_snippets
from sglang_lp.errors import SglangLpError, shown
from sglang_lp.trust import Verifier
from sglang_lp.wire.names import HEADER

if TYPE_CHECKING:
    from sglang_lp.policy import Policy
    from sglang_lp.served_model import ServedModel
    from sglang_lp.trace import Trace

_OK = 200


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of the page's form.

    Attributes:
        processor: Name of a processor that the server lists.
        params: Its ``custom_params``.
        prompt: The prompt.
        chat: Whether the prompt is the message of a chat, or a text to continue.
        max_tokens: Most tokens of an answer.
        temperature: Sampling temperature.
    """

    processor: str
    params: dict[str, Any]
    prompt: str
    chat: bool
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0)]


class Exchanged(NamedTuple):
    """A request, its answer, and the error if it was not answered with tokens."""

    body: Mapping[str, Any]
    answer: HttpAnswer
    error: str = ""


class Target:
    """A server that is tried.

    Args:
        url: As ``base_of`` returned it.
        listed: The answer of ``GET /sglang_lp``.
        model: Name of its model.
        policy: The policy whose classes a trace may run.
    """

    def __init__(self, url: str, listed: Mapping[str, Any], model: str, policy: Policy) -> None:
        self._url = url
        self._listed = listed
        self._model = model
        self._policy = policy
        self._verifier = Verifier(policy)

    @classmethod
    def find(cls, url: str, policy: Policy) -> Self:
        """Ask a server what it offers.

        Args:
            url: The URL that a person gave.
            policy: As for the class.

        Raises:
            SglangLpError: The server does not answer, or its guard is not live.
        """
        url = base_of(url, "--url")
        listed = read_list(url)
        if not listed["guarded"]:
            raise SglangLpError("the server is not guarded: a hook is lost; restart it")
        return cls(url, listed, model_name(url), policy)

    def offer(self) -> dict[str, Any]:
        """Return the facts of the empty page: the server, its model and its processors."""
        return {
            "url": self._url,
            "model": self._model,
            "version": self._listed["version"],
            "processors": [make_form(one) for one in self._listed["processors"]],
        }

    def ask(self, wish: Wish) -> dict[str, Any]:
        """Send a prompt with and without a processor.

        Returns:
            ``answers``, with the processor and without: each has ``text``, ``thinking``, ``about``
            and ``error``. ``trace``: a page, or an empty text and ``note`` with the reason.
            ``snippets``: the request with the processor, to copy.
        """
        path = "/v1/chat/completions" if wish.chat else "/v1/completions"
        messages = [{"role": "user", "content": wish.prompt}]
        plain = {
            "model": self._model,
            **({"messages": messages} if wish.chat else {"prompt": wish.prompt}),
            "max_tokens": wish.max_tokens,
            "temperature": wish.temperature,
        }
        edited = {
            **plain,
            "custom_logit_processor": wish.processor,
            "custom_params": wish.params,
        }
        with ThreadPoolExecutor(2) as both:
            exchanged = [*both.map(lambda body: self._send(path, body), (edited, plain))]
        try:
            trace, note = self._trace(*exchanged), ""
        except SglangLpError as error:
            trace, note = "", str(error)
        key = bool(os.environ.get("OPENAI_API_KEY"))
        return {
            "answers": [_read(one) for one in exchanged],
            "trace": trace,
            "note": note,
            "snippets": write_snippets(self._url, path, edited, key=key),
        }

    def _send(self, path: str, body: Mapping[str, Any]) -> Exchanged:
        # A trace needs the tokens.
        body = {**body, "return_token_ids": True}
        try:
            answer = request("POST", self._url, path, body)
        except SglangLpError as error:
            return Exchanged(body, HttpAnswer(0, {}, None), str(error))
        return Exchanged(body, answer, "" if answer.status == _OK else _message(answer))

    def _trace(self, edited: Exchanged, plain: Exchanged) -> str:
        """Return the page of the trace; empty if there is no answer to trace.

        Raises:
            SglangLpError: The answer cannot be traced.
        """
        from sglang_lp.trace import write_page

        if edited.error:
            return ""
        beside = None if plain.error else self._replay(plain)
        return write_page(self._replay(edited), beside, "With the processor, and without it")

    def _replay(self, one: Exchanged) -> Trace:
        from sglang_lp.trace import read_exchange, trace_answer

        served = self._served
        exchange = read_exchange(one.body, one.answer.body, served.tokenizer)
        payload = exchange.payload
        processor = None if payload is None else find_class(self._verifier, payload)
        return trace_answer(processor, exchange, served)

    @cached_property
    def _served(self) -> ServedModel:
        policy = self._policy
        catalogues = policy.open_catalogues().now if policy.catalogues else {}
        return fetch_model(self._url)._replace(
            catalogues=catalogues, watermark=policy.read_watermark()
        )


def _message(answer: HttpAnswer) -> str:
    """Return the message of a refusal; the whole answer if it has none."""
    body = answer.body
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            return f"HTTP {answer.status}: {error['message']}"
    return told(answer)


def _read(one: Exchanged) -> dict[str, str]:
    """Return an answer as the page shows it."""
    found = {"text": "", "thinking": "", "about": "", "error": one.error}
    if one.error:
        return found
    body = one.answer.body
    try:
        choice = body["choices"][0]
        message = choice.get("message") or choice
        tokens = body["usage"]["completion_tokens"]
        found["text"] = message.get("content") or message.get("text") or ""
        found["thinking"] = message.get("reasoning_content") or ""
    except (KeyError, IndexError, TypeError, AttributeError):
        return {**found, "error": f"expected an answer of SGLang, got {told(one.answer)}"}
    ran = shown(one.answer.headers.get(HEADER.lower(), "none"), 200)[1:-1]
    found["about"] = (
        f"{tokens} token{'s' * (tokens != 1)}, finish reason {choice.get('finish_reason')}; "
        f"processors: {ran}"
    )
    return found
