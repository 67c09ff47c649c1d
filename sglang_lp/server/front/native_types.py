"""SGLang's own checks of a body of ``/generate``, for requests that it makes of other bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from inspect import signature
from typing import Any

from sglang_lp.errors import RequestError, did_you_mean, shown


def check_types(body: Mapping[str, Any]) -> None:
    """Check types and names of fields as ``/generate`` does, which refuses no unknown field.

    Args:
        body: A body of ``/generate``.

    Raises:
        RequestError: A field is unknown or has another type.
    """
    from pydantic import ValidationError

    known = _names()
    for name in body:
        if name not in known:
            hint = did_you_mean(name, known) or "; leave it out"
            told = shown(name)
            raise RequestError(f"{told[1:-1] or told}: no such field{hint}")
    try:
        _adapter().validate_python(dict(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(f"{first['loc'][0]}: {first['msg']}") from None
    # SGLang's message names the field only if it is unknown, so fields are checked one by one.
    for name, part in _parts(body):
        wrong = _contract()(part)
        if wrong is not None:
            raise RequestError(f"{name}: {wrong}")


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field of a body by name, in a body of its own."""
    for name, value in body.items():
        if name != "sampling_params":
            yield name, {name: value}
            continue
        for sampling in value if isinstance(value, list) else [value]:
            for key, one in (sampling or {}).items():
                yield key, {name: {key: one}}


def _request() -> Any:
    from sglang.srt.managers.io_struct import GenerateReqInput

    return GenerateReqInput


@cache
def _names() -> list[str]:
    return [*signature(_request()).parameters]


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_request())


@cache
def _contract() -> Any:
    """Return SGLang's check of the schema; before 0.5.22 there is none."""
    try:
        from sglang.srt.entrypoints.api_contract import generate_contract_error
    except ImportError:
        return lambda _body: None
    return generate_contract_error
