"""Fields of clients' requests that SGLang does not pass on to a processor.

SGLang's front ends turn each body into a form of their own, and drop fields that the model does not
need. :data:`FIELDS` is the table of these fields: where SGLang still has the field, how its value
is read, and the key of ``custom_params`` that passes the value on. Clients cannot send these keys.
The rules of both gates decide what the values mean for a request.

sglang-router drops ``custom_params`` on ``/generate``, and ``custom_logit_processor`` as well on
chats and responses. It passes on the text in ``custom_logit_processor`` of ``/generate`` and the
entries of ``metadata`` elsewhere, so either may hold processor and parameters together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp import wire
from sglang_lp.adapters import AdaptedProcessor
from sglang_lp.adapters.vllm_xargs import merge_xargs
from sglang_lp.errors import RequestError, shown
from sglang_lp.params import MAX_INT
from sglang_lp.policy.fields import ENGINE_FIELDS, NO_CALLS
from sglang_lp.policy.sections import LEVELS
from sglang_lp.server.front.answer_errors import noting
from sglang_lp.server.front.engine_fields import (
    MISSING,
    spell,
    to_bad_words,
    to_count,
    to_no_calls,
    to_one_call,
    to_repetition,
    to_sigmas,
    to_token_ids,
)
from sglang_lp.server.front.header import find_endpoint
from sglang_lp.server.front.native_types import check_types
from sglang_lp.server.front.places import PARAMS, PROCESSOR
from sglang_lp.server.gate.reasoning_parser import may_begin_inside
from sglang_lp.server.gate.reserved_keys import (
    BUDGET_FIELD,
    EFFORT,
    FIELD_KEYS,
    ROUTED,
    THOUGHT,
    add_given,
    add_own,
)
from sglang_lp.server.gate.routed_form import GIVEN_TWICE
from sglang_lp.trust.audit import Asking, asking

if TYPE_CHECKING:
    from sglang_lp.served_model import ToolCallFormat
    from sglang_lp.server.gate.guard import Guard


class At(Enum):
    """Where SGLang still has a field.

    A client sends a *body*, and SGLang turns it into a *form*. The table of hooks names the
    functions.
    """

    CHAT = "the body of a chat"
    COMPLETION = "the body of a completion"
    RESPONSE = "the body of a response"
    OLLAMA = "the options of a body of Ollama's, with its level of thinking"
    CHAT_FORM = "SGLang's form of a chat, which it makes sampling parameters of"
    RESPONSE_FORM = "SGLang's form of a response, which it makes sampling parameters of"
    MESSAGE_FORM = "SGLang's form of a message of Anthropic's, which it makes a chat of"


class Field(NamedTuple):
    """A field of a client's request.

    Attributes:
        name: As clients write it, with a dot before each inner key.
        at: The places where SGLang still has the field.
        key: Key in ``custom_params`` that passes the value on; :data:`XARGS` for a field that holds
            parameters itself. If several fields share a key, the first that has a value counts.
        find: Return the value to pass on, or ``MISSING``. Takes the body or form, and the name;
            raises ``RequestError`` for a wrong value.
        serves: Tell whether this server reads the field.
    """

    name: str
    at: tuple[At, ...]
    key: str
    find: Callable[[Any, str], Any]
    serves: Callable[[Guard], bool]


XARGS = "vllm_xargs"

_BAD_WORDS = FIELD_KEYS["bad_words"]
_NO_CALLS, _ONE_CALL = FIELD_KEYS["tool_choice"], FIELD_KEYS["parallel_tool_calls"]
#: Keys of fields that a server that runs no processors leaves to SGLang.
_READ = frozenset({BUDGET_FIELD, *FIELD_KEYS.values()})

#: Where the fields found in a body are kept until its form is read: an attribute of SGLang's form
#: of a response, which refuses unknown fields, and an option of a body of Ollama's.
_KEPT = "sglang_lp_found"


def _get(source: Any, name: str) -> Any:
    """Return a field of a body or of a form; ``MISSING`` if there is no such field."""
    for key in name.split("."):
        if isinstance(source, Mapping):
            source = source.get(key, MISSING)
        else:
            source = getattr(source, key, MISSING)
    return source


def _parameters(source: Any, name: str) -> Any:
    """Return a field as it is; ``null`` counts as no field."""
    given = _get(source, name)
    return MISSING if given is None else given


def _level(source: Any, name: str) -> Any:
    """Return a level of effort, or ``MISSING`` for other values, which only SGLang reads."""
    level = _get(source, name)
    return level if level in LEVELS else MISSING


def _tokens(source: Any, name: str) -> Any:
    """Return a thinking budget, in tokens."""
    value = _get(source, name)
    if value is None or value is MISSING:
        return MISSING
    if type(value) is not int or value > MAX_INT:
        raise RequestError(
            f"{name}: expected a whole number of tokens, got {shown(value)}; give one, or leave it "
            "out"
        )
    return value


def _enabled_tokens(source: Any, name: str) -> Any:
    """Return the thinking budget of an Anthropic message, unless thinking is disabled."""
    return MISSING if _get(source, "thinking.type") == "disabled" else _tokens(source, name)


def _no_beams(source: Any, name: str) -> Any:
    """Refuse the beams of a request that names a processor; SGLang ignores the field here."""
    width = _get(source, name)
    names = [_get(source, key) for key in ("custom_logit_processor", f"metadata.{wire.ENTRY}")]
    named = any(one is not None and one is not MISSING for one in names)
    if named and type(width) is int and width > 1:
        raise RequestError(
            f"{name}: expected none on SGLang's OpenAI endpoints, which ignore it, got {width}; "
            "leave it out, or send the request to /generate"
        )
    return MISSING


def always(_guard: Guard) -> bool:
    """Serve on every server."""
    return True


def reads_effort(guard: Guard) -> bool:
    """Tell whether the operator's rules read how much a request asks to think."""
    return guard.rules.reads_effort


def _reads_fields(guard: Guard) -> bool:
    return guard.rules.reads_fields


def _reads(name: str) -> Callable[[Guard], bool]:
    return lambda guard: guard.rules.reads(name)


def _reads_allowed(name: str) -> Callable[[Guard], bool]:
    """Tell whether a field counts and its built-in is allowed; else SGLang alone reads it."""
    kind = ENGINE_FIELDS[name].processor
    return lambda guard: (
        guard.rules.reads(name) and any(one.processor is kind for one in guard.verifier.allowed)
    )


def _engine_field(name: str, find: Callable[[Any, str], Any], at: tuple[At, ...]) -> Field:
    reads = _reads_allowed if ENGINE_FIELDS[name].is_sglangs else _reads
    return Field(name, at, FIELD_KEYS[name], find, reads(name))


def _adapts_vllm(guard: Guard) -> bool:
    return any(
        issubclass(one.processor, AdaptedProcessor) and one.processor.interface.startswith("vllm")
        for one in guard.verifier.allowed
    )


_BODIES = At.CHAT, At.COMPLETION
_OPENAI = *_BODIES, At.RESPONSE
_BUDGETS = *_OPENAI, At.OLLAMA
_NAMED = At.RESPONSE, At.OLLAMA

FIELDS = (
    Field(f"metadata.{wire.ENTRY}", (*_BODIES, At.RESPONSE_FORM), ROUTED, _get, always),
    Field(XARGS, _BODIES, XARGS, _parameters, _adapts_vllm),
    # The budget's names in clients of Qwen and SGLang, vLLM and Dynamo, llama.cpp, OpenRouter,
    # Anthropic.
    Field("thinking_budget", _BUDGETS, BUDGET_FIELD, _tokens, _reads_fields),
    Field("thinking_token_budget", _BUDGETS, BUDGET_FIELD, _tokens, _reads_fields),
    Field("thinking_budget_tokens", _BUDGETS, BUDGET_FIELD, _tokens, _reads_fields),
    Field("reasoning.max_tokens", _OPENAI, BUDGET_FIELD, _tokens, _reads_fields),
    Field(
        "thinking.budget_tokens",
        _OPENAI,
        BUDGET_FIELD,
        _enabled_tokens,
        _reads_fields,
    ),
    _engine_field("bad_words", to_bad_words, _BUDGETS),
    _engine_field("allowed_token_ids", to_token_ids, _BUDGETS),
    _engine_field("no_repeat_ngram_size", to_count, _BUDGETS),
    _engine_field("repetition_detection", to_repetition, _BUDGETS),
    _engine_field("top_n_sigma", to_sigmas, _BUDGETS),
    # SGLang has it in chats and completions; a chat may be an Anthropic message.
    _engine_field("min_tokens", to_count, (At.CHAT, *_NAMED)),
    _engine_field("tool_choice", to_no_calls, (At.CHAT, At.RESPONSE)),
    _engine_field("parallel_tool_calls", to_one_call, (At.CHAT, At.RESPONSE)),
    # SGLang's forms of these have no such fields.
    Field(PROCESSOR, _NAMED, PROCESSOR, _parameters, always),
    Field(PARAMS, _NAMED, PARAMS, _parameters, always),
    Field("beam_width", _OPENAI, "beam_width", _no_beams, always),
    Field("reasoning_effort", (At.CHAT_FORM, At.COMPLETION), EFFORT, _level, reads_effort),
    Field("think", (At.OLLAMA,), EFFORT, _level, reads_effort),
    Field("reasoning.effort", (At.RESPONSE_FORM,), EFFORT, _level, reads_effort),
    # SGLang's form of a chat has "max" for "xhigh".
    Field("output_config.effort", (At.MESSAGE_FORM,), EFFORT, _level, reads_effort),
)


def is_read(at: At, guard: Guard) -> bool:
    """Tell whether a server reads any field at a place."""
    return any(field.serves(guard) for field in FIELDS if at in field.at)


class Reader:
    """Reads the fields of the table. Its public methods are hooks.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._fields = {
            at: [field for field in FIELDS if at in field.at and field.serves(guard)] for at in At
        }

    def read_chat(self, serving: Any, request: Any, raw_request: Any = None) -> None:
        """Read the body of a chat before SGLang turns it into its own form."""
        self._read_body(At.CHAT, serving, request, raw_request)
        if _has_thought(self._guard, serving, request):
            request.custom_params = add_own(request.custom_params, THOUGHT, value=True)

    def read_completion(self, serving: Any, request: Any, raw_request: Any = None) -> None:
        """Read the body of a completion before SGLang turns it into its own form."""
        self._read_body(At.COMPLETION, serving, request, raw_request)

    def keep_response(self, serving: Any, request: Any, raw_request: Any = None) -> None:
        """Keep the fields in the body of a response for :meth:`read_response_form`.

        Raises:
            HTTPException: A value is wrong: HTTP 400.
        """
        try:
            with self._refusing(raw_request):
                found = self._found_in_body(At.RESPONSE, serving, request, _body(raw_request))
                _check_given(found, request)
        except RequestError as error:  # SGLang would answer it with HTTP 500 here
            from fastapi import HTTPException

            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None
        if found:
            object.__setattr__(request, _KEPT, found)  # the type's own setter would refuse

    def read_response_form(
        self, sampling: dict[str, Any], request: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """Read a response after SGLang has built its sampling parameters."""
        found = {**self._found(At.RESPONSE_FORM, request), **getattr(request, _KEPT, {})}
        _pass_on(sampling, found)

    def keep_options(self, serving: Any, request: Any, raw_request: Any = None) -> None:
        """Keep the fields in a body of Ollama's for :meth:`read_options`.

        Raises:
            RequestError: A value is wrong, or a field is not in ``options``.
        """
        body, options = _body(raw_request), request.options or {}
        with self._refusing(raw_request):
            self._check_options(body)
            source = {**options, "think": getattr(request, "think", None)}
            found = self._found_in_body(At.OLLAMA, serving, request, source)
            _check_given(found, request)
        request.options = {**options, _KEPT: found}

    def _check_options(self, body: Any) -> None:
        """Refuse fields at the top of a body of Ollama's: its clients have them in ``options``."""
        for field in self._fields[At.OLLAMA]:
            name = field.name
            if name != "think" and isinstance(body, Mapping) and body.get(name) is not None:
                raise RequestError(
                    f"{name}: expected in options on this endpoint, got it at the top of the body; "
                    "move it into options"
                )

    def read_options(self, sampling: dict[str, Any], _serving: Any, options: Any = None) -> None:
        """Read the options of Ollama's after SGLang has built its sampling parameters.

        SGLang passes on Ollama's ``seed`` by a name that its parameters do not have.

        Raises:
            RequestError: An option has another type than SGLang's parameter.
        """
        if "seed" in sampling:
            sampling["sampling_seed"] = sampling.pop("seed")
        with self._refusing(None):
            check_types({"text": "", "sampling_params": sampling})
        _pass_on(sampling, {**(options or {}).get(_KEPT, {})})

    def read_chat_form(
        self, sampling: dict[str, Any], request: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """Read a chat after SGLang has built its sampling parameters.

        By then SGLang has chosen the effort among the several fields that may hold it.
        """
        found = self._found(At.CHAT_FORM, request)
        if found:
            sampling["custom_params"] = _with(sampling.get("custom_params"), found)

    def read_message(
        self,
        chat_request: Any,
        _serving: Any,
        anthropic_request: Any,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Read an Anthropic message after SGLang has turned it into a chat."""
        found = self._found(At.MESSAGE_FORM, anthropic_request)
        chat_request.custom_params = _with(chat_request.custom_params, found)

    @contextmanager
    def _refusing(self, raw_request: Any) -> Iterator[None]:
        """Count and note a refusal that passes through the block.

        SGLang reads bodies in other threads, where nothing else knows the HTTP request.
        """
        before = asking.set(Asking(find_endpoint(raw_request)))
        try:
            with noting(raw_request), self._guard.counting():
                yield
        finally:
            asking.reset(before)

    def _read_body(self, at: At, serving: Any, request: Any, raw_request: Any) -> None:
        body = _body(raw_request)
        with self._refusing(raw_request):
            found = self._found_in_body(at, serving, request, body)
            if isinstance(body, Mapping):
                _take_dropped(request, body)
            if XARGS in found:
                known, xargs = request.custom_params or {}, found.pop(XARGS)
                request.custom_params = add_given(known, merge_xargs({**known, XARGS: xargs}))
        if found:
            request.custom_params = _with(request.custom_params, found)

    def _found_in_body(self, at: At, serving: Any, request: Any, body: Any) -> dict[str, Any]:
        """Return the values of the fields found in a body, by their keys.

        Raises:
            RequestError: A value is wrong.
        """
        # SGLang itself honours min_tokens of a chat, and drops that of a message.
        keeps = isinstance(body, Mapping) and bool(getattr(request, "min_tokens", 0))
        found = self._found(at, {**body, "min_tokens": None} if keeps else body)
        if not _runs_processors(serving):  # SGLang alone reads the request
            return {key: value for key, value in found.items() if key not in _READ}
        form = self._guard.server.tool_calls
        bans = form and (found.get(_NO_CALLS) == NO_CALLS or self._calls_in_thoughts(form))
        for key, is_known in ((_NO_CALLS, bans), (_ONE_CALL, form and form.end)):
            if not is_known:  # SGLang alone reads the field
                found.pop(key, None)
        if _BAD_WORDS in found:
            found[_BAD_WORDS] = spell(found[_BAD_WORDS], serving.tokenizer_manager.tokenizer)
        return found

    def _calls_in_thoughts(self, form: ToolCallFormat) -> bool:
        """Tell whether a call counts that opens inside of thinking."""
        return self._guard.server.reasoning is not None and form.where == "everywhere"

    def _found(self, at: At, source: Any) -> dict[str, Any]:
        """Return the values of the fields found in a body or a form, by their keys."""
        found: dict[str, Any] = {}
        for field in self._fields[at]:
            if field.key not in found:
                value = field.find(source, field.name)
                if value is not MISSING:
                    found[field.key] = value
        return found


def _check_given(found: Mapping[str, Any], request: Any) -> None:
    """Check the processor and the parameters in a body whose form has no such fields.

    Raises:
        RequestError: The parameters are no object, or ``metadata`` names a processor as well.
    """
    if PROCESSOR in found and _get(getattr(request, "metadata", None), wire.ENTRY) is not MISSING:
        raise RequestError(GIVEN_TWICE)
    if not isinstance(found.get(PARAMS, {}), Mapping):
        raise RequestError(f"{PARAMS}: expected an object, got {shown(found[PARAMS])}")


def _pass_on(sampling: dict[str, Any], found: dict[str, Any]) -> None:
    """Write what was found in a body into SGLang's sampling parameters.

    Args:
        sampling: The parameters that SGLang has built; changed.
        found: Values by the keys of :data:`FIELDS`; changed.
    """
    if PARAMS in found:
        given, known = found.pop(PARAMS), sampling.get("custom_params")
        sampling["custom_params"] = _with(given, known or {})
    if PROCESSOR in found:
        found[ROUTED] = found.pop(PROCESSOR)
    if found:
        sampling["custom_params"] = _with(sampling.get("custom_params"), found)


def _take_dropped(request: Any, body: Mapping[str, Any]) -> None:
    """Take processor and parameters of an Anthropic message, whose type has no such fields.

    Args:
        request: The chat that SGLang has made of the message; or a chat, which has its fields.
        body: The body of the message.
    """
    if request.custom_logit_processor is None:
        request.custom_logit_processor = body.get(PROCESSOR)
    given, known = body.get(PARAMS), request.custom_params
    is_taken = (
        isinstance(given, Mapping) and isinstance(known, Mapping) and given.items() <= known.items()
    )
    if given is not None and not is_taken:
        request.custom_params = _with(given, known or {})


def _with(custom_params: Any, found: Mapping[str, Any]) -> Any:
    """Return ``custom_params`` with the values found in other fields, by their keys."""
    for key, value in found.items():
        custom_params = add_own(custom_params, key, value)
    return custom_params


def take_max_thinking_tokens(manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
    """Turn ``max_thinking_tokens`` of a body (``GenerateReqInput``) into a thinking budget.

    Without ``--enable-strict-thinking`` SGLang would refuse the field before any gate. A value of
    another type is left for SGLang to refuse.
    """
    budget = getattr(obj, "max_thinking_tokens", None)
    if type(budget) is not int:
        return
    preferred = (getattr(manager, "preferred_sampling_params", None) or {}).get("custom_params")
    many = isinstance(obj.sampling_params, list)
    samplings = obj.sampling_params if many else [obj.sampling_params]
    if not all(isinstance(one, dict | None) for one in samplings):
        return  # SGLang refuses it
    kept = []
    for one in samplings:
        own = (one or {}).get("custom_params", preferred)
        kept.append({**(one or {}), "custom_params": add_own(own, BUDGET_FIELD, budget)})
    obj.sampling_params = kept if many else kept[0]
    obj.max_thinking_tokens = None


def _has_thought(guard: Guard, serving: Any, request: Any) -> bool:
    """Tell whether a chat continues an answer (``continue_final_message``) that is done thinking.

    SGLang assumes that any answer of a thinking model may begin inside its reasoning. Only SGLang's
    reasoning parser reads the final message, with which the client begins the answer.
    """
    form = guard.server.reasoning
    if form is None or not (form.can_begin_inside and request.continue_final_message):
        return False
    begun = getattr(request.messages[-1], "content", None) if request.messages else None
    if not isinstance(begun, str):
        return False  # SGLang's parser cannot read it
    tokenizer = serving.tokenizer_manager.tokenizer
    return not may_begin_inside(serving.reasoning_parser, request, tokenizer)


def _body(raw_request: Any) -> Any:
    """Return the parsed JSON of an HTTP request, from the attribute where Starlette keeps it."""
    return getattr(raw_request, "_json", None)


def _runs_processors(serving: Any) -> bool:
    """Tell whether this server runs processors."""
    settings = serving.tokenizer_manager.server_args
    return bool(getattr(settings, "enable_custom_logit_processor", False))
