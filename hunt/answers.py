"""HTTP replies as a client reads them: the texts, tokens, end and report of each answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Answer", "Reply", "answers_of"]

#: Codes of the toolkit's errors that no caller causes.
_FAULTS = {"processor_fault", "internal_error", "not_run"}


@dataclass(frozen=True)
class Reply:
    """The reply to one HTTP request.

    Attributes:
        status: HTTP status; 0 if no answer came.
        headers: Lower-case names.
        events: The JSON of a whole answer, or of each event of a stream.
        seconds: Until the last of it.
        is_cut: Whether the client hung up.
        failure: Why no answer came.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[Any] = ()
    seconds: float = 0.0
    is_cut: bool = False
    failure: str = ""

    def errors(self) -> Iterator[tuple[int, str]]:
        """Yield status and message of each error, those in mid-answer among them."""
        if self.status != 200:
            yield self.status, self.failure or str([*self.events])
            return
        for event in self.events:
            for one in event if isinstance(event, list) else [event]:
                yield from _errors_in(one)


def _errors_in(event: Any) -> Iterator[tuple[int, str]]:
    if not isinstance(event, Mapping):
        return
    whole = event.get("response")
    error = event.get("error") or (isinstance(whole, Mapping) and whole.get("error"))
    if error:
        yield _status_of(error), str(error)
    choices = [one for one in event.get("choices") or () if isinstance(one, Mapping)]
    metas = [event.get("meta_info"), *(one.get("meta_info") for one in choices)]
    for meta in metas:
        finish = (meta or {}).get("finish_reason")
        if isinstance(finish, Mapping) and finish.get("type") == "abort" and finish.get("err_type"):
            yield finish.get("status_code") or 500, str(finish)


def _status_of(error: Any) -> int:
    """Return the HTTP status of an error in an event, which not every endpoint says."""
    said = error if isinstance(error, Mapping) else {}
    if isinstance(said.get("code"), int):
        return int(said["code"])
    return 500 if said.get("sglang_lp_code", "internal_error") in _FAULTS else 400


@dataclass
class Answer:
    """One answer of a reply.

    Attributes:
        texts: By field, what the client has at the end.
        shown: Every text that it was shown meanwhile, such as those of events that are replaced.
        token_ids: Tokens, if the endpoint tells them.
        finish: Why it ended: ``stop``, ``length``, ``abort``, or ``None``.
        matched: The stop text or token that ended it.
        report: What the server says of its processors.
        completion_tokens: Number of its tokens, if told.
        calls: Names or places of its tool calls.
    """

    texts: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    token_ids: list[int] | None = None
    finish: str | None = None
    matched: Any = None
    report: Mapping[str, Any] | None = None
    completion_tokens: int | None = None
    calls: set[Any] = field(default_factory=set)

    @property
    def everything(self) -> list[str]:
        """Every text that the client got."""
        return [*self.texts.values(), *self.shown]

    def add(self, name: str, text: Any) -> None:
        """Put a piece behind the text of a field."""
        if isinstance(text, str):
            self.texts[name] = self.texts.get(name, "") + text

    def take_meta(self, meta: Any) -> None:
        """Read SGLang's ``meta_info`` of the answer."""
        if not isinstance(meta, Mapping):
            return
        self.report = meta.get("sglang_lp", self.report)
        self.completion_tokens = meta.get("completion_tokens", self.completion_tokens)
        finish = meta.get("finish_reason")
        if isinstance(finish, Mapping):
            self.finish, self.matched = finish.get("type"), finish.get("matched")


def answers_of(path: str, reply: Reply) -> list[Answer]:
    """Return the answers of a successful reply, in the order of their places.

    Args:
        path: Of the endpoint.
        reply: To it.
    """
    if reply.status != 200:
        return []
    found: dict[Any, Answer] = {}
    read = _READERS.get(path, _chosen)
    for event in reply.events:
        if isinstance(event, Mapping | list):  # an odd request may get another form
            with suppress(AttributeError, KeyError, TypeError):
                read(event, found)
    return [found[place] for place in sorted(found)]


def _generated(event: Any, found: dict[Any, Answer]) -> None:
    """Read ``/generate``: every event has the whole text so far."""
    for place, one in enumerate(event if isinstance(event, list) else [event]):
        if "text" not in one and "output_ids" not in one:
            continue
        # The answers of a beam search; the first of them is the event itself.
        for beam, own in enumerate(one["meta_info"].get("beam_results") or [one]):
            answer = found.setdefault((one.get("index", place), beam), Answer())
            answer.texts["text"] = own.get("text", "")
            answer.shown.append(own.get("text", ""))
            answer.token_ids = own.get("output_ids")
            meta = own["meta_info"]
            answer.take_meta(meta)
            pieces = [piece[2] for piece in meta.get("output_token_logprobs") or () if piece[2]]
            answer.shown.append("".join(pieces))


def _chosen(event: Any, found: dict[Any, Answer]) -> None:
    """Read chats and completions."""
    for one in event.get("choices") or ():
        answer = found.setdefault(one["index"], Answer())
        said = one.get("delta") or one.get("message") or one
        for name in ("text", "content", "reasoning_content"):
            answer.add(name, said.get(name))
        for place, call in enumerate(said.get("tool_calls") or ()):
            number = call.get("index") if call.get("index") is not None else place
            answer.calls.add(number)
            name = f"call {number}"
            answer.add(name, (call.get("function") or {}).get("arguments"))
        tokens = one.get("response_token_ids") or one.get("token_ids")
        if tokens:  # of this event
            answer.token_ids = [*(answer.token_ids or ()), *tokens]
        answer.finish = one.get("finish_reason") or answer.finish
        answer.matched = one.get("matched_stop") or answer.matched
        logprobs = one.get("logprobs") or {}
        named = [piece["token"] for piece in logprobs.get("content") or ()]
        answer.add("logprobs", "".join(named or logprobs.get("tokens") or ()))
        finish = answer.finish
        answer.take_meta(one.get("meta_info"))
        answer.finish = answer.finish or finish


def _responded(event: Any, found: dict[Any, Answer]) -> None:
    """Read OpenAI's responses, whole and as events."""
    answer = found.setdefault(0, Answer())
    kind = event.get("type", "")
    if kind.endswith(".delta"):
        answer.add(kind, event.get("delta"))
        return
    whole = event.get("response", event)
    if not isinstance(whole, Mapping):
        return
    answer.take_meta(whole.get("meta_info"))
    for item in whole.get("output") or ():
        if item.get("type") == "function_call":
            answer.calls.add(item.get("call_id"))
        parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
        said = "".join(part.get("text") or "" for part in parts) + (item.get("arguments") or "")
        answer.texts[f"{item.get('type')} {item.get('id')}"] = said
    incomplete = (whole.get("incomplete_details") or {}).get("reason")
    if whole.get("status") in {"completed", "incomplete"}:
        answer.finish = "length" if incomplete else "stop"


def _messaged(event: Any, found: dict[Any, Answer]) -> None:
    """Read Anthropic's messages, whole and as events."""
    answer = found.setdefault(0, Answer())
    delta = event.get("delta") or {}
    for name in ("text", "thinking", "partial_json"):
        answer.add(f"{name} {event.get('index')}", delta.get(name))
    begun = event.get("content_block") or {}
    if begun.get("type") == "tool_use":
        answer.calls.add(event.get("index"))
    for place, part in enumerate(event.get("content") or ()):
        if part.get("type") == "tool_use":
            answer.calls.add(place)
        for name in ("text", "thinking"):
            answer.add(f"{name} {place}", part.get(name))
    reason = event.get("stop_reason") or delta.get("stop_reason")
    if reason:
        answer.finish = "length" if reason == "max_tokens" else "stop"


def _predicted(event: Any, found: dict[Any, Answer]) -> None:
    """Read Vertex's predictions, which are answers of ``/generate``."""
    _generated(event.get("predictions", event), found)


def _ollama(event: Any, found: dict[Any, Answer]) -> None:
    """Read Ollama's chats and generations, whole and as lines."""
    answer = found.setdefault(0, Answer())
    message = event.get("message") or {}
    for name in ("content", "thinking"):
        answer.add(name, message.get(name))
    answer.add("text", event.get("response"))
    answer.finish = event.get("done_reason") or answer.finish


_READERS: Mapping[str, Callable[[Any, dict[Any, Answer]], None]] = {
    "/generate": _generated,
    "/vertex_generate": _predicted,
    "/v1/responses": _responded,
    "/v1/messages": _messaged,
    "/api/chat": _ollama,
    "/api/generate": _ollama,
}
