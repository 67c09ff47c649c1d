"""Checks of parsed bodies: fields that a client misspells or puts in the wrong place.

SGLang would drop them silently. Keys are compared as SGLang has parsed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_lp.errors import RequestError, shown
from sglang_lp.server.gate.request_fields import ordinary_names
from sglang_lp.wire.names import ENTRY

PROCESSOR, PARAMS = "custom_logit_processor", "custom_params"
_EXTRA_BODY, _SAMPLING, _OPTIONS = "extra_body", "sampling_params", "options"


def _squeeze(name: str) -> str:
    """Return a name without what clients write differently: case, hyphens and plurals."""
    return name.lower().replace("_", "").replace("-", "").replace("s", "")


#: The fields that clients mean, by their squeezed names and those of other engines' fields.
_MEANT = {
    **{_squeeze(name): PROCESSOR for name in (PROCESSOR, "logit_processor")},
    **{_squeeze(name): PARAMS for name in (PARAMS, "custom_parameter")},
}
#: SGLang's own names, of which none means a field for a processor: most bodies have no others.
_ORDINARY = ordinary_names() - {PROCESSOR, PARAMS, _EXTRA_BODY}
#: Most characters of a name that is compared; messages show the name.
_LONGEST = 40


def meant_by(name: str) -> str | None:
    """Return the field for a processor that a client means by a key; ``None`` for other keys."""
    if len(name) > _LONGEST:
        return None
    low = name.lower()
    if "proc" not in low and "param" not in low:  # most keys: no field has neither
        return None
    return _MEANT.get(_squeeze(low))


def check_openai(body: Any) -> None:
    """Check a body with both fields at its top: a chat, a completion, a response or a message.

    Raises:
        RequestError: A field is misspelled or in the wrong place. The message says which is right.
    """
    if not isinstance(body, Mapping):
        return  # SGLang refuses it
    _check_names(body)
    sampling = body.get(_SAMPLING)
    if isinstance(sampling, Mapping):
        for name, _ in named(sampling):
            raise RequestError(
                f"{name}: expected at the top of the body on this endpoint, got it in "
                "sampling_params, which only /generate has; move it to the top"
            )


def check_generate(body: Any) -> None:
    """Check a body of ``/generate``: the processor at its top, parameters in ``sampling_params``.

    Raises:
        RequestError: As :func:`check_openai`.
    """
    if not isinstance(body, Mapping):
        return
    _check_names(body)
    if body.get(PARAMS) is not None:
        raise RequestError(
            f"{PARAMS}: expected in sampling_params on /generate, got it at the top of the body; "
            "move it into sampling_params"
        )
    samplings = body.get(_SAMPLING)
    for one in samplings if isinstance(samplings, list) else [samplings]:
        if not isinstance(one, Mapping):
            continue
        _check_names(one)
        if one.get(PROCESSOR) is not None:
            raise RequestError(
                f"{PROCESSOR}: expected at the top of the body on /generate, got it in "
                "sampling_params; move it to the top"
            )


def check_ollama(body: Any) -> None:
    """Check a body of Ollama's endpoints: both fields in ``options``, which its clients can set.

    Raises:
        RequestError: As :func:`check_openai`.
    """
    if not isinstance(body, Mapping):
        return
    options = body.get(_OPTIONS)
    if isinstance(options, Mapping):
        _check_names(options)
    for place in (body, body.get(_EXTRA_BODY), body.get(_SAMPLING)):
        for name, meant in named(place):
            raise RequestError(
                f"{name}: expected {meant} in options on this endpoint, got it elsewhere in the "
                "body; move it into options"
            )


def refuse_named(body: Any, path: str, why: str) -> None:
    """Refuse a body that names a processor, on an endpoint that does not run any.

    Args:
        body: As SGLang has parsed it; a form's fields as a mapping.
        path: The endpoint, for the message.
        why: Why the endpoint runs none, as a relative clause.

    Raises:
        RequestError: It names a processor or has parameters for one. The message says where to
            send it.
    """
    if not isinstance(body, Mapping):
        return
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get(ENTRY) is not None:
        raise _no_processor(f"metadata.{ENTRY}", path, why)
    for place in (body, *(body.get(key) for key in (_SAMPLING, _OPTIONS, _EXTRA_BODY, "session"))):
        for name, _ in named(place):
            raise _no_processor(name, path, why)


def _no_processor(name: str, path: str, why: str) -> RequestError:
    return RequestError(
        f"{name}: expected no custom logit processor on {path}, {why}; send the request to "
        "/generate or /v1/chat/completions, or leave it out"
    )


def named(place: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of an object that mean a field for a processor, and the fields' names."""
    if not isinstance(place, Mapping):
        return
    for name, value in place.items():
        if value is not None and (meant := meant_by(name)) is not None:
            yield name, meant


def _check_names(body: Mapping[str, Any]) -> None:
    """Refuse misspelled fields, and the openai client's argument as a field."""
    if body.keys() <= _ORDINARY:
        return
    for name, meant in named(body):
        if name != meant:
            raise RequestError(f"{shown(name)[1:-1]}: no such field; did you mean {meant!r}?")
    if body.get(_EXTRA_BODY):
        raise RequestError(
            f"{_EXTRA_BODY}: no field, but an argument of the openai client, which puts its "
            "entries at the top of the body; put them there"
        )
