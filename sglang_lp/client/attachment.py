"""A processor for a request, or for all prompts of a request."""

from __future__ import annotations

from collections.abc import KeysView, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp import builtins, wire
from sglang_lp.client.answers import check_ran
from sglang_lp.client.json_values import copy_value, to_json_value
from sglang_lp.errors import InvalidParameter, RequestError, shown
from sglang_lp.params import is_private, take_beside
from sglang_lp.params.parsed import parse_once
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.trace import Trace

__all__ = ["Attachment", "add_payload", "attach", "copy_mapping", "suggest_builtin"]


#: A tuple: isinstance() with a union is slower, and attach() has 5 µs (docs/performance.md).
_LIST = (list, tuple)


class Attachment(msgspec.Struct, frozen=True):
    """A processor with its parameters, checked and ready to be put into requests.

    Made by :func:`attach`, for any number of requests. No method changes its arguments.
    It unpacks like the dict of :meth:`extra_body`, so ``extra_body=think`` works as well in the
    ``openai`` and ``anthropic`` clients, and ``{**think, ...}`` in a body.
    Parameters that the request already has in ``custom_params`` are kept: the parameters given to
    :func:`attach` are added, and all are checked together.

    Every method raises :class:`~sglang_lp.errors.RequestError` if the request already has a
    ``custom_logit_processor``, or a field has a type that SGLang does not take; and its subclass
    ``InvalidParameter`` if ``custom_params`` has another value for a parameter of this
    attachment, or a parameter that the processor does not know.

    Attributes:
        processor: The class.
        payload: The payload text, as SGLang's ``to_str()`` returns it.
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
            routed: Use the form that also passes sglang-router, for guarded servers only. The
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
            routed: Use the form that also passes sglang-router and the responses endpoint, for
                guarded servers only. It is an entry of ``metadata``. Give other entries of
                ``metadata`` in ``extra``: ``extra_body`` replaces the client's own.
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

    def keys(self) -> KeysView[str]:
        """Return the names of the fields of :meth:`extra_body`."""
        return self.extra_body().keys()

    def __getitem__(self, name: str) -> Any:
        return self.extra_body()[name]

    def sampling_params(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the ``sampling_params`` of one prompt, with the parameters in them.

        Args:
            given: The ``sampling_params`` of the prompt so far.
        """
        return self._join({} if given is None else copy_mapping(given, "sampling_params"))

    def resolve(self, tokenizer: Any) -> Attachment:
        """Return this attachment with its texts resolved to the tokens of a model.

        A text that the model cannot write is refused before the request is sent, and a server
        without a tokenizer can serve parameters that mean tokens: forced text, thinking
        delimiters, tokens that hold a text. A text that may be spelled by any tokens (a banned
        word, a choice, a trigger) is checked and stays text, for the server's own tokenizer.

        Args:
            tokenizer: The model's directory, which also has its end tokens; or its tokenizer, of
                ``tokenizers`` or ``transformers``.

        Raises:
            InvalidParameter: The parameters do not fit the model.
            RequestError: ``tokenizer`` is no tokenizer, or the processor is of another library.
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
        """Replay the processor over an answer, and return its edits at each token.

        A notebook shows the result as a page. Needs torch.

        Args:
            response: The answer of ``/generate``, of ``Engine.generate``, or of an OpenAI endpoint
                with ``return_token_ids``.
            prompt: Token ids or text of the prompt. May be left out if the answer has the ids.
            tokenizer: The model's tokenizer, of ``tokenizers`` or ``transformers``, or its
                directory.
            choice: Index of the answer, if there are several.

        Raises:
            RequestError: The answer or the prompt has no token ids, or the parameters do not fit
                the model, or a package for traces is missing.
        """
        from sglang_lp.client.models import load_model
        from sglang_lp.trace import check_packages, read_exchange, trace_answer

        check_packages()  # before the tokenizer's own package is missed
        served = load_model(tokenizer)
        request = {"prompt": prompt if isinstance(prompt, str | None) else [*prompt]}
        exchange = read_exchange(
            request | {"custom_params": self.custom_params}, response, served.tokenizer, choice
        )
        return trace_answer(self.processor, exchange, served)

    def check(self, response: Any) -> None:
        """Check that this processor ran on an answer.

        Some proxies drop fields that they do not know, so that the server never sees the request's
        ``custom_logit_processor`` and answers without it.

        Args:
            response: An HTTP response or another object with ``headers`` (``httpx``, ``requests``,
                the ``openai`` client's ``with_raw_response``); headers; or the answer of
                ``/generate`` or ``Engine``, for one prompt or a batch; or the body of an OpenAI
                endpoint, for a request with ``"return_meta_info": true``. Of a stream, the event
                with the reports. The header names the processors of all prompts together: check a
                batch of :func:`attach_each` with :meth:`Attachments.check`.

        Raises:
            NotRun: The processor did not run, or the answer names no processors.
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
        """Return the names of the attached processors, as an answer has them."""
        # The parameter is checked first: no other processor loads the chain.
        if "chain" in self._params and issubclass(self.processor, builtins.ChainLogitProcessor):
            return [name.rpartition(":")[2] for name in self._params["chain"]]
        return [self.processor.__name__]

    def _join(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Set ``custom_params`` in ``fields``, even if empty: without it SGLang adds no history."""
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
            parse_once(self.processor, take_beside(joined)[0])
        fields["custom_params"] = joined
        return fields


def attach(
    processor: type[Any] | str | Sequence[type[Any] | str | Attachment], /, **params: Any
) -> Attachment:
    """Choose a processor and its parameters for requests.

    Args:
        processor: One of:

            - a :class:`~sglang_lp.processor.LogitProcessor`, or the name of a built-in;
            - a class of another library, with SGLang's ``to_str()`` or written for vLLM,
              Transformers or Dynamo. Its parameters are checked only for types that SGLang can
              carry;
            - a list of these, or of attachments, which runs all as a ``ChainLogitProcessor``.
        params: The parameters, as in ``custom_params``. Tuples, sets, ranges and the numbers and
            arrays of NumPy and torch become numbers and lists.

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
        parse_once(cls, params)
    return Attachment(cls, to_str(), params)


def _unset(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy without the fields that the router drops."""
    lost = {"custom_logit_processor", "custom_params"}
    return {name: value for name, value in fields.items() if name not in lost}


def _is_foreign(cls: Any) -> bool:
    """Return whether a class may be a processor of another engine, which the server adapts."""
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
    if not links:
        raise RequestError(
            "attach: expected at least one processor, got an empty list; give one, or send the "
            "request as it is"
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
    """Return a shallow copy of a field's mapping.

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
