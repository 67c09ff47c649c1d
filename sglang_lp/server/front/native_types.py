"""SGLang's own checks of a body of ``/generate``, for requests that it makes of other bodies."""

from __future__ import annotations

from collections.abc import Mapping
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
            raise RequestError(f"{shown(name)[1:-1]}: no such field{hint}")
    try:
        _adapter().validate_python(dict(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    wrong = _contract()(dict(body))
    if wrong is not None:
        raise RequestError(wrong)


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
