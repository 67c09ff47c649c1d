"""Few errors for a body of wrong types, however many wrong values it has.

Pydantic reports each wrong entry of a list, once for each type of a union, FastAPI copies the
reports, and SGLang writes all of them into its answer: seconds of the event loop for a body of
300 kB. Here the validation of a list ends at its first wrong entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

#: Most errors that are reported one by one; unions of types report several for a value.
_MOST = 64
#: Pydantic's types that can stop at the first wrong entry.
_COUNTABLE = frozenset(("dict", "frozenset", "list", "set", "tuple"))

#: Parts of a schema without schemas in them.
_NO_SCHEMAS = frozenset(("config", "default", "expected", "metadata", "serialization"))


class BriefErrors:
    """A type adapter of pydantic's that reports few errors.

    Args:
        adapter: The adapter.

    Raises:
        TypeError: This pydantic cannot validate models by another schema than their own.
    """

    def __init__(self, adapter: Any) -> None:
        from pydantic_core import SchemaValidator

        self._adapter = adapter
        schema = _failing_fast(adapter.core_schema)
        # Otherwise it takes the validators of the models, which do not end early.
        self._validator: Any = SchemaValidator(schema, _use_prebuilt=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def validate_python(self, value: Any, **options: Any) -> Any:
        """Validate a value as the adapter does, up to the first wrong entry of each list.

        Raises:
            ValidationError: Pydantic's; one that tells the number of errors if there are many, or
                that an object was expected where a validator of SGLang's fails on another value.
        """
        from pydantic import ValidationError

        try:
            return self._validator.validate_python(value, **options)
        except ValidationError as error:
            count = error.error_count()
            if count <= _MOST:
                raise
        except AttributeError:  # SGLang's validator of a chat reads a field of whatever came
            if isinstance(value, Mapping):
                raise
            raise _wrong("wrong_type", "expected an object") from None
        raise _wrong("many_errors", "{count} values have a wrong type", count=count)


def _failing_fast(schema: Any) -> Any:
    """Return a copy of a schema of pydantic's whose lists end at their first wrong entry."""
    if type(schema) in {list, tuple}:
        return type(schema)(map(_failing_fast, schema))
    if type(schema) is not dict:
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # the fields of a model, by their names
        return {name: _failing_fast(part) for name, part in schema.items()}
    copied = {
        name: part if name in _NO_SCHEMAS else _failing_fast(part) for name, part in schema.items()
    }
    if kind in _COUNTABLE:
        copied["fail_fast"] = True
    return copied


def _wrong(kind: LiteralString, problem: LiteralString, **context: int) -> Any:
    from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

    error = PydanticCustomError(kind, problem, context)
    wrong = InitErrorDetails(type=error, loc=(), input=None)
    return ValidationError.from_exception_data("body", [wrong])


def report_briefly(app: Any) -> bool:
    """Report few errors of each body that an app validates.

    Args:
        app: SGLang's app, not yet running.

    Returns:
        Whether FastAPI validates bodies with adapters that can be replaced, by a pydantic that can
        end early.
    """
    from fastapi.routing import iter_route_contexts

    dependants = [getattr(one.route, "dependant", None) for one in iter_route_contexts(app.routes)]
    fields = [field for one in dependants for field in getattr(one, "body_params", ())]
    if not all(hasattr(field, "_type_adapter") for field in fields):
        return False
    try:
        for field in fields:
            field._type_adapter = BriefErrors(field._type_adapter)  # noqa: SLF001 - FastAPI has no other way
    except TypeError:
        return False
    return True
