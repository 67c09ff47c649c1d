"""One processor for a request, or for all prompts of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp import builtins, wire
from sglang_lp.client.answers import check_ran
from sglang_lp.client.json_values import copy_value, to_json_value
from sglang_lp.errors import InvalidParameter, RequestError, shown
from sglang_lp.params import is_private, take_beside
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.trace import Trace

__all__ = ["Attachment", "add_payload", "attach", "copy_mapping", "suggest_builtin"]


#: No union, which takes twice as long, and attach() has 5 µs.
_LIST = (list, tuple)


class Attachment(msgspec.Struct, frozen=True):
    """A processor with its parameters, checked and ready to be put into requests.

    Made by :func:`attach`; may be used for any number of requests. No method changes its
    arguments. What they hold is kept: parameters in ``custom_params`` are joined by those given
    to :func:`attach`, and the whole is checked again.

    Every method raises :class:`~sglang_lp.errors.RequestError` if the request has a
    ``custom_logit_processor`` already or something is not of the type that SGLang takes there,
    and its subclass ``InvalidParameter`` if ``custom_params`` has another value for a parameter
    of this attachment, or one that the processor does not know.

    Attributes:
        processor: The class.
        payload: Its payload text, what SGLang's ``to_str()`` returns.
    """

    processor: type[Any]
    payload: str
    _params: dict[str, Any]

    @property
    def custom_params(self) -> dict[str, Any]:
        """The parameters as JSON values, in a new dict; empty if there are none."""
        return {key: copy_value(value) for key, value in self._params.items()}

    def engine_kwargs(
        self, sampling_params: Mapping[str, Any] | list[Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the keyword arguments for ``Engine.generate`` and ``Engine.async_generate``.

        Args:
            sampling_params: One dict, or one for each prompt of a batch.
            kwargs: Other arguments of the call, such as ``prompt``; returned with the rest.
        """
        return self.generate_body({**kwargs, "sampling_params": sampling_params})

    def generate_body(self, body: Mapping[str, Any], *, routed: bool = False) -> dict[str, Any]:
        """Return the JSON body for ``POST /generate``, of one prompt or a batch.

        Args:
            body: The body without the processor.
            routed: Write the form that also survives sglang-router, for guarded servers only. The
                router takes one prompt at a time.
        """
        if routed:
            return self._route_generate(body)
        result = add_payload(body, self.payload)
        given = result.get("sampling_params")
        if isinstance(given, list | tuple):
            result["sampling_params"] = [self.sampling_params(one) for one in given]
        else:
            result["sampling_params"] = self.sampling_params(given)
        return result

    def extra_body(
        self, extra: Mapping[str, Any] | None = None, *, routed: bool = False
    ) -> dict[str, Any]:
        """Return the ``extra_body`` for the ``openai`` client, chat and completions alike.

        Args:
            extra: Other fields that are SGLang's and not OpenAI's.
            routed: Write the form that also survives sglang-router, for guarded servers only; it
                is the one for responses, too. It is an entry of ``metadata``: the request's other
                entries belong into ``extra``, because ``extra_body`` replaces the client's own.
        """
        fields = self._join(add_payload({} if extra is None else extra, self.payload))
        if not routed:
            return fields
        given = fields.get("metadata")
        metadata = {} if given is None else copy_mapping(given, "metadata")
        if wire.ENTRY in metadata:
            raise RequestError(
                f"metadata: this request has a processor in {wire.ENTRY!r}; leave it out"
            )
        return _unset(fields) | {"metadata": metadata | {wire.ENTRY: self._whole(fields)}}

    def sampling_params(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the ``sampling_params`` of one prompt, with the parameters in them.

        Args:
            given: Those of the prompt so far.
        """
        return self._join({} if given is None else copy_mapping(given, "sampling_params"))

    def resolve(self, tokenizer: Any) -> Attachment:
        """Return the same with what its texts are for a model, as the server would have it.

        So what the model cannot write is refused before anything is sent, and a server without a
        tokenizer can be given texts that stand for tokens: forced text, thinking delimiters,
        tokens that hold a text. A text that is looked for whichever tokens spell it (a banned
        word, a choice, a trigger) is checked and stays text, for the server's own tokenizer.

        Args:
            tokenizer: The model's directory, which also tells its end tokens; or its tokenizer, of
                ``tokenizers`` or ``transformers``.

        Raises:
            InvalidParameter: The parameters do not fit the model.
            RequestError: This is no tokenizer, or the processor is of another library.
        """
        from sglang_lp.client.models import load_model
        from sglang_lp.client.resolving import resolve_params

        if tokenizer is None:
            raise RequestError("resolve: expected the model's directory or its tokenizer, got None")
        params = resolve_params(self.processor, self._params, load_model(tokenizer))
        return Attachment(self.processor, self.payload, params)

    def trace(
        self,
        response: Any,
        prompt: str | Sequence[int] | None = None,
        *,
        tokenizer: Any = None,
        choice: int = 0,
    ) -> Trace:
        """Replay the processor over an answer, to see what it did at each token.

        In a notebook the result shows as a page. Needs torch.

        Args:
            response: The JSON of ``/generate``, what ``Engine.generate`` returned, or the answer of
                an OpenAI endpoint that was asked for ``return_token_ids``.
            prompt: Its token ids, or its text. May be left out if the answer has the ids.
            tokenizer: The model's, of ``tokenizers`` or ``transformers``, or its directory.
            choice: Which of several answers, from 0 on.

        Raises:
            RequestError: The answer or the prompt has no token ids, or the parameters do not fit
                the model.
        """
        from sglang_lp.client.models import load_model
        from sglang_lp.trace import read_exchange, trace_answer

        served = load_model(tokenizer)
        request = {"prompt": prompt if isinstance(prompt, str | None) else [*prompt]}
        exchange = read_exchange(
            request | {"custom_params": self.custom_params}, response, served.tokenizer, choice
        )
        return trace_answer(self.processor, exchange, served)

    def check(self, response: Any) -> None:
        """Make sure that this processor ran on an answer.

        Servers behind a proxy may never have seen the request's ``custom_logit_processor``: some
        proxies drop fields that they do not know, and answer as if nothing had been asked.

        Args:
            response: An HTTP response or anything else with ``headers`` (``httpx``, ``requests``,
                the ``openai`` client's ``with_raw_response``), its headers, or what ``/generate``
                or ``Engine`` returned, for one prompt or a batch. Of a stream the last event.

        Raises:
            NotRun: It did not run, or the answer does not tell.
        """
        check_ran(self._names(), response)

    def _route_generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        result = add_payload(body, self.payload)
        given = result.get("sampling_params")
        if isinstance(given, list | tuple):
            raise RequestError(
                "sampling_params: sglang-router takes one prompt at a time, got a list; send each "
                "prompt in a request of its own"
            )
        sampling = self.sampling_params(given)
        return result | {
            "custom_logit_processor": self._whole(sampling),
            "sampling_params": _unset(sampling),
        }

    def _whole(self, fields: Mapping[str, Any]) -> str:
        """Return processor and parameters as one text."""
        module, name = self.processor.__module__, self.processor.__qualname__
        by_name = "." not in name and self.payload == wire.payload_for(module, name)
        return wire.fold(f"{module}:{name}" if by_name else self.payload, fields["custom_params"])

    def _names(self) -> list[str]:
        """Return the names by which an answer calls what is attached."""
        # Other classes are asked first, so that they do not load the chain.
        if "chain" in self._params and issubclass(self.processor, builtins.ChainLogitProcessor):
            return [name.rpartition(":")[2] for name in self._params["chain"]]
        return [self.processor.__name__]

    def _join(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Set ``custom_params`` in ``fields``, always: without it SGLang passes no history."""
        given = fields.get("custom_params")
        given = {} if given is None else copy_mapping(given, "custom_params")
        name = self.processor.__name__
        for key in given.keys() & self._params.keys():
            if to_json_value(name, key, given[key]) != self._params[key]:
                raise InvalidParameter(
                    name,
                    key,
                    f"given twice, in custom_params as {shown(given[key])} and to attach() as "
                    f"{shown(self._params[key])}; give it once",
                )
        joined = given | self.custom_params
        if len(joined) > len(self._params) and issubclass(self.processor, LogitProcessor):
            self.processor.parse_params(take_beside(joined)[0])
        fields["custom_params"] = joined
        return fields


def attach(
    processor: type[Any] | str | Sequence[type[Any] | str | Attachment], /, **params: Any
) -> Attachment:
    """Choose a processor and its parameters for requests.

    Args:
        processor: A :class:`~sglang_lp.processor.LogitProcessor`; the name of a built-in; or a
            class of another library, with SGLang's ``to_str()`` or written for vLLM, Transformers
            or Dynamo, whose parameters are not checked beyond whether SGLang can carry them. A list
            of these, or of what ``attach`` returned for them, runs them all, as a
            ``ChainLogitProcessor``.
        params: Its parameters, as in ``custom_params``. Tuples, sets, ranges and the numbers and
            arrays of NumPy and torch become what JSON has.

    Raises:
        InvalidParameter: A parameter that the processor does not take.
        RequestError: ``processor`` is none of these.
    """
    if isinstance(processor, _LIST):
        return _attach_chain(processor, params)
    cls: Any = _find_builtin(processor) if isinstance(processor, str) else processor
    to_str: Any = getattr(cls, "to_str", None)
    if to_str is None and _is_foreign(cls):
        to_str = partial(wire.payload_for, cls.__module__, cls.__qualname__)
    if not isinstance(cls, type) or not callable(to_str):
        hint = "; give its class" if to_str else ""
        raise RequestError(
            "attach: expected a processor class or the name of a built-in, "
            f"got {getattr(cls, '__name__', None) or shown(cls)}{hint}"
        )
    for key, value in params.items():
        if is_private(key):
            raise InvalidParameter(cls.__name__, key, "reserved by SGLang; leave it out")
        params[key] = to_json_value(cls.__name__, key, value)
    if issubclass(cls, LogitProcessor):
        cls.parse_params(params)
    return Attachment(cls, to_str(), params)


def _unset(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields without those that the router drops."""
    lost = {"custom_logit_processor", "custom_params"}
    return {name: value for name, value in fields.items() if name not in lost}


def _is_foreign(cls: Any) -> bool:
    """Tell whether this may be a processor of another engine, which the server adapts."""
    return (
        isinstance(cls, type)
        and cls.__module__ not in {"builtins", "__main__"}
        and "." not in cls.__qualname__
        and any({"__call__", "apply"} & vars(base).keys() for base in cls.__mro__)
    )


def _attach_chain(links: Sequence[Any], params: dict[str, Any]) -> Attachment:
    if params:
        raise RequestError(
            f"attach: {shown(next(iter(params)))} was given to a list of processors; give it to "
            "the one that it is for, as in attach([attach(A, ...), attach(B, ...)])"
        )
    given: dict[str, Any] = {"chain": []}
    for place, one in enumerate(links):
        link = one if isinstance(one, Attachment) else attach(one)
        given["chain"].append(_name_link(link))
        given |= {f"{place}.{key}": value for key, value in link.custom_params.items()}
    return attach(builtins.ChainLogitProcessor, **given)


def _name_link(link: Attachment) -> str:
    module, name = link.processor.__module__, link.processor.__qualname__
    if module == builtins.__name__:
        return name
    if "." in name or link.payload != wire.payload_for(module, name):
        raise RequestError(
            f"attach: {shown(name)} travels as code and so cannot be one of several processors; "
            "move it to a module, or attach it alone"
        )
    return f"{module}:{name}"


def _find_builtin(name: str) -> Any:
    if name in builtins.__all__:
        return getattr(builtins, name)
    if "{" in name:
        raise RequestError(
            "attach: expected a processor class or the name of a built-in, got a payload text; "
            "it can go into the request's custom_logit_processor as it is"
        )
    hint = suggest_builtin(name, "a class of your own goes in itself")
    raise RequestError(f"attach: expected the name of a built-in, got {shown(name)}; {hint}")


def suggest_builtin(name: str, otherwise: str) -> str:
    """Return the hint that a built-in has nearly this name; ``otherwise`` if none has."""
    import difflib  # as in params

    near = difflib.get_close_matches(name[:80], builtins.__all__, n=1, cutoff=0.4)
    return f"did you mean {near[0]}?" if near else otherwise


def copy_mapping(value: Any, field: str) -> dict[str, Any]:
    """Return a copy of what a field holds, one level deep.

    Raises:
        RequestError: It is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise RequestError(f"{field}: expected a dict, got {shown(value)}")
    return dict(value)


def add_payload(request: Mapping[str, Any], payload: Any) -> dict[str, Any]:
    """Return a copy of a request with the payload in it.

    Raises:
        RequestError: It is not a mapping, or has a payload.
    """
    result = copy_mapping(request, "request")
    if result.get("custom_logit_processor") is not None:
        raise RequestError(
            "custom_logit_processor: this request has one already, and SGLang runs one for each; "
            "attach to a request without it"
        )
    result["custom_logit_processor"] = payload
    return result
