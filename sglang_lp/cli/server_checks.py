"""The checks of ``sglang-lp doctor --url``: requests to a running server, and their answers.

They are sent as any client would send them, through all routers and proxies on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from sglang_lp import wire
from sglang_lp.builtins import ForcedSequenceLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.delimiters import PAIRS
from sglang_lp.cli.http import HttpAnswer, NoAnswer, base_of, request, told
from sglang_lp.errors import SglangLpError, shown
from sglang_lp.wire.names import HEADER, POLICY_HEADER, REPORT

#: The text that is forced, and looked for in the answer.
_WORDS = "The doctor was here."
_OK, _BAD_REQUEST, _NOT_FOUND = 200, 400, 404
#: Statuses of a route that needs another key.
_CLOSED = 401, 403
#: Tokens that a request asks for: room for the text and for a thinking budget that leaves room for
#: the answer. The text ends the answer where the endpoint has stop strings.
_TOKENS = 512
#: Part of a server's refusal of a forced text that its operator's rules contradict.
_CONTRADICTED = "contradicts what this server's operator decided"
#: Part of the error of transformers on a model without a chat template.
_NO_CHATS = "tokenizer.chat_template is not set"
#: Requests that are sent to learn policies: a router spreads them over its workers.
_ASKED = 8
#: Digits of a fingerprint that are shown.
_DIGITS = 12
#: SGLang's own class by name, with a step before it that no to_str() writes: a server that
#: unpickles accepts it and bans no token; a guarded one takes exact payloads only.
_ODD_REFERENCE = (
    b"\x80\x04N0csglang.srt.sampling.custom_logit_processor\nDisallowedTokensLogitsProcessor\n."
)


class Skipped(Exception):
    """A check cannot be made on this server. The message says why."""


class Warned(Exception):
    """A check found what an operator may have meant. The message says what."""


class RunsNone(SglangLpError):
    """A server runs no processors of this toolkit, so its other checks say nothing more.

    Attributes:
        why: The reason in a few words, for the checks that are skipped.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def checks(url: str) -> list[tuple[str, Callable[[], str]]]:
    """Return the checks of a server: names, and functions that return the finding as text.

    The functions raise ``SglangLpError`` if a check fails, ``Skipped`` if it cannot be made, and
    ``Warned`` for something that is no failure.

    Args:
        url: URL of the server, or of a router or proxy in front of it.

    Raises:
        UsageError: It is not an HTTP URL.
    """
    url = base_of(url, "--url")
    guarded = cache(partial(_is_guarded, url))
    runs_none = cache(partial(_why_none_runs, url))

    def unless_none_runs(check: Callable[[], str]) -> str:
        if why := runs_none():
            raise Skipped(f"not checked: {why}")
        return check()

    asking = [
        ("policy", partial(_check_policy, url)),
        *(
            (f"{path} forced text", partial(_check_forced, url, path, ask, guarded))
            for path, ask in _ENDPOINTS.items()
        ),
        ("/generate thinking budget", partial(_check_budget, url, guarded)),
    ]
    return [
        ("guard", partial(check_guard, url)),
        *((name, partial(unless_none_runs, check)) for name, check in asking),
        ("administrators' routes", partial(_check_closed, url)),
    ]


def check_same_policy(urls: Sequence[str]) -> str:
    """Compare the policies of servers.

    Raises:
        SglangLpError: They differ, or a server does not tell its policy.
    """
    found = {url: _check_policy(base_of(url, "--url")) for url in urls}
    if len({*found.values()}) > 1:
        listed = "".join(f"\n          {url}: {policy}" for url, policy in found.items())
        raise SglangLpError(f"the servers decide differently; start them with one policy{listed}")
    return next(iter(found.values()))


def _policies(url: str) -> set[str]:
    """Return the policy fingerprints of the servers behind a URL; empty for a server without."""
    found = set()
    for number in range(_ASKED):
        body = {"text": f"{number}, the doctor asks.", "sampling_params": {"max_new_tokens": 1}}
        answer = _post(url, "/generate", body)
        found.add(shown(answer.headers.get(POLICY_HEADER.lower(), "")[:_DIGITS])[1:-1])
    return found


def _check_policy(url: str) -> str:
    found = _policies(url)
    if "" in found:
        raise SglangLpError(
            f"no header {POLICY_HEADER}: the server does not run sglang-lp, or a router or proxy "
            "dropped the header"
        )
    if len(found) > 1:
        raise SglangLpError(
            f"the servers behind this URL decide differently: {', '.join(sorted(found))}; start "
            "them with one policy"
        )
    return found.pop()


def check_guard(url: str, *, key: bool = True) -> str:
    """Tell whether a server is guarded.

    Args:
        url: As :func:`base_of` returned it.
        key: As for :func:`request`.

    Raises:
        SglangLpError: It is not guarded, or does not answer; :class:`RunsNone` if it runs no
            processors of this toolkit.
    """
    payload = wire.encode(_ODD_REFERENCE)
    answer = request("POST", url, "/generate", _generate(payload, {"token_ids": []}), key=key)
    text = shown(str(answer.body), 400)
    has_plugin = POLICY_HEADER.lower() in answer.headers
    if answer.status == _OK:
        if has_plugin:
            raise SglangLpError(
                "the server took a payload that no allowed class writes: something dropped the "
                "payload on the way"
            )
        raise RunsNone(
            "the server took a payload that no allowed class writes, so it unpickles what clients "
            "send, or something dropped the payload on the way; install sglang-lp where the server "
            "runs, and start it with sglang-lp serve",
            "the server is not guarded",
        )
    if "custom_logit_processor: expected a class that this server allows" in text:
        return "a payload that a stock server would unpickle is refused"
    if "custom logit processor" in text.lower() and "enable" in text.lower():
        without = "" if has_plugin else "; install sglang-lp where the server runs as well"
        raise RunsNone(
            "processors are off: add --enable-custom-logit-processor to the server's command, or "
            f"start it with sglang-lp serve, which adds it{without}",
            "processors are off",
        )
    raise SglangLpError(f"expected a refusal of sglang-lp, got HTTP {answer.status}: {text}")


def _why_none_runs(url: str) -> str:
    """Return why a server runs no processors of this toolkit; empty if it may run them."""
    try:
        check_guard(url)
    except RunsNone as none:
        return none.why
    except NoAnswer:
        return "the server does not answer"
    except SglangLpError:  # the guard's check tells it
        return ""
    return ""


def _is_guarded(url: str) -> bool:
    """Tell whether every server behind a URL is guarded, as far as can be seen.

    Ask before sending the routed form to ``/generate``: it ends the scheduler of an unguarded one.
    """
    try:
        check_guard(url)
    except SglangLpError:
        return False
    return "" not in _policies(url)


def _check_forced(
    url: str,
    path: str,
    ask: Callable[[str | None, Any], dict[str, Any]],
    guarded: Callable[[], bool],
) -> str:
    fields = {} if path == "/generate" else {"model": model_name(url)}
    params = {"text": _WORDS}
    try:
        plain = ask(ForcedSequenceLogitProcessor.to_str(), params)
        return _force(url, path, {**plain, **fields})
    except SglangLpError as error:
        if path == "/generate" and not guarded():
            raise
        why = f"; in the usual form: {error}"
    whole = wire.fold("ForcedSequenceLogitProcessor", params)
    try:
        found = _force(url, path, {**_route(path, ask(None, None), whole), **fields})
    except SglangLpError as error:
        raise SglangLpError(f"{error}{why}") from error
    return f"{found} in the routed form (attach(...), routed=True){why}"


def _route(path: str, body: dict[str, Any], whole: str) -> dict[str, Any]:
    """Return a body with a processor in the form that sglang-router passes on."""
    if path == "/generate":
        return {**body, "custom_logit_processor": whole}
    return {**body, "metadata": {wire.ENTRY: whole}}


def _force(url: str, path: str, body: Mapping[str, Any]) -> str:
    answer = _ask(url, path, body)
    if _WORDS in _text(answer):
        named = answer.headers.get(HEADER.lower())
        lost = "" if named else f"; the header {HEADER} was lost on the way"
        return f"comes back{lost}"
    named = answer.headers.get(HEADER.lower())
    if named is None:
        raise SglangLpError(
            f"not forced, and no header {HEADER}: the server does not run sglang-lp"
        )
    raise SglangLpError(
        "not forced, and the server never saw the request's custom_logit_processor: "
        f"a router or proxy dropped it (the server ran: {shown(named, 200)})"
    )


def _check_budget(url: str, guarded: Callable[[], bool]) -> str:
    if not guarded():
        raise Skipped("not checked: the server is not guarded")
    opening = "".join(start for start, _ in PAIRS)
    whole = wire.fold(ThinkingBudgetLogitProcessor.to_str(), {"thinking_budget": 0})
    body = _route("/generate", _generate(None, None), whole)
    try:
        answer = _ask(url, "/generate", {**body, "text": opening})
    except SglangLpError as error:
        if "thinking delimiters" not in str(error):
            raise
        raise Skipped(
            "the served model's tokenizer has no known pair of thinking delimiters"
        ) from None
    try:
        block = answer.body["meta_info"][REPORT]["thinking"][0]
        ended = block["ended"]
    except (KeyError, IndexError, TypeError):
        raise SglangLpError(
            f'the answer has no report: expected meta_info["{REPORT}"]["thinking"]'
        ) from None
    if ended != "budget":
        raise SglangLpError(f"a budget of 0 did not end the open block: {shown(str(block), 200)}")
    return "a budget of 0 ends an open block at once"


def _check_closed(url: str) -> str:
    """Ask an administrator's route as a client: without a rank it does nothing."""
    answer = request("GET", url, "/remote_instance_transfer_engine_info")
    if answer.status in _CLOSED:
        return "closed to clients"
    if answer.status == _BAD_REQUEST and "rank" in str(answer.body):
        raise Warned(
            "open to every client: one request to /release_memory_occupation ends the server, one "
            "to /pause_generation stops it; start it with --admin-api-key"
        )
    raise Skipped(f"not checked: a router or proxy answered HTTP {answer.status}")


#: Ends an answer with the forced text, which stays in it.
_STOP = {"stop": _WORDS, "no_stop_trim": True}


def _generate(payload: str | None, params: Any) -> dict[str, Any]:
    sampling = {
        "temperature": 0,
        "max_new_tokens": _TOKENS,
        **_STOP,
        "custom_params": params,
    }
    return {"text": "Hello.", "sampling_params": sampling, "custom_logit_processor": payload}


def _completion(payload: str | None, params: Any) -> dict[str, Any]:
    return {"prompt": "Hello.", **_openai(payload, params)}


def _chat(payload: str | None, params: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello."}], **_openai(payload, params)}


def _openai(payload: str | None, params: Any) -> dict[str, Any]:
    return {
        "temperature": 0,
        "max_tokens": _TOKENS,
        **_STOP,
        "custom_logit_processor": payload,
        "custom_params": params,
    }


def _responses(payload: str | None, params: Any) -> dict[str, Any]:
    return {
        "input": "Hello.",
        "temperature": 0,
        "max_output_tokens": _TOKENS,
        # The router writes "stream": null where it is left out, which SGLang refuses.
        "stream": False,
        "custom_logit_processor": payload,
        "custom_params": params,
    }


def _message(payload: str | None, params: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "Hello."}],
        "temperature": 0,
        "max_tokens": _TOKENS,
        "custom_logit_processor": payload,
        "custom_params": params,
    }


_ENDPOINTS: Mapping[str, Callable[[str | None, Any], dict[str, Any]]] = {
    "/generate": _generate,
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
    "/v1/responses": _responses,
    "/v1/messages": _message,
}


def model_name(url: str) -> str:
    """Return the name of the served model.

    Args:
        url: As :func:`base_of` returned it.

    Raises:
        SglangLpError: The server names none.
    """
    answer = request("GET", url, "/v1/models")
    try:
        name: str = answer.body["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        raise SglangLpError(f"/v1/models names no model: {told(answer)}") from None
    return name


def _text(answer: HttpAnswer) -> str:
    """Return all text of an answer, reasoning included.

    Raises:
        SglangLpError: It is not an answer of SGLang.
    """
    body = answer.body
    try:
        if "output" in body:
            return str(body["output"])
        if "text" in body:
            return str(body["text"])
        if "content" in body:
            return str(body["content"])
        found = []
        for choice in body["choices"]:
            message = choice.get("message") or choice
            found += [message.get(name) or "" for name in ("reasoning_content", "content", "text")]
        return "".join(found)
    except (KeyError, TypeError, AttributeError):
        raise SglangLpError(f"expected an answer of SGLang, got {told(answer)}") from None


def _ask(url: str, path: str, body: Mapping[str, Any]) -> HttpAnswer:
    """Send a request that is to be answered.

    Raises:
        SglangLpError: It was not.
        Skipped: The operator's own rules do not let it, the model takes no chats, or there is no
            such endpoint.
    """
    answer = _post(url, path, body)
    if answer.status == _NOT_FOUND:
        raise Skipped(f"not checked: no such endpoint here: {told(answer)}")
    if answer.status == _BAD_REQUEST and _CONTRADICTED in str(answer.body):
        raise Skipped(f"the processor runs, and its text {_CONTRADICTED}")
    if answer.status != _OK and _NO_CHATS in str(answer.body):
        raise Skipped("not checked: the served model has no chat template")
    if answer.status != _OK:
        raise SglangLpError(told(answer))
    return answer


def _post(url: str, path: str, body: Mapping[str, Any]) -> HttpAnswer:
    return request("POST", url, path, body)
