"""Few errors for a body of wrong types, however many wrong values it has.

Pydantic reports each wrong entry of a list, FastAPI copies the reports, and SGLang writes all of
them into its answer: seconds of the event loop for a body of 300 kB.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

#: Most errors that are reported one by one; unions of types report several for a value.
_MOST = 64
#: Entries of each list or object, and levels, that are validated again for a report.
_ENTRIES, _LEVELS = 4, 8


class BriefErrors:
    """A type adapter of pydantic's that reports few errors.

    Args:
        adapter: The adapter.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def validate_python(self, value: Any, **options: Any) -> Any:
        """Validate a value as the adapter does.

        Raises:
            ValidationError: Pydantic's, of the first entries if the whole value has many errors.
        """
        from pydantic import ValidationError

        try:
            return self._adapter.validate_python(value, **options)
        except ValidationError as error:
            count = error.error_count()
            if count <= _MOST:
                raise
        try:
            self._adapter.validate_python(_shortened(value, _LEVELS), **options)
        except ValidationError as error:
            if error.error_count() <= _MOST:
                raise
        raise _summary(count)


def _shortened(value: Any, levels: int) -> Any:
    """Return a value with the first entries of its lists and objects."""
    if not levels:
        return value
    if isinstance(value, list):
        return [_shortened(one, levels - 1) for one in value[:_ENTRIES]]
    if isinstance(value, dict) and len(value) > _MOST:
        value = dict(islice(value.items(), _ENTRIES))
    if isinstance(value, dict):
        return {name: _shortened(one, levels - 1) for name, one in value.items()}
    return value


def _summary(count: int) -> Any:
    from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

    kind = PydanticCustomError("many_errors", "{count} values have a wrong type", {"count": count})
    wrong = InitErrorDetails(type=kind, loc=(), input=None)
    return ValidationError.from_exception_data("body", [wrong])


def report_briefly(app: Any) -> bool:
    """Report few errors of each body that an app validates.

    Args:
        app: SGLang's app, not yet running.

    Returns:
        Whether FastAPI validates bodies with adapters that can be replaced.
    """
    from fastapi.routing import iter_route_contexts

    dependants = [getattr(one.route, "dependant", None) for one in iter_route_contexts(app.routes)]
    fields = [field for one in dependants for field in getattr(one, "body_params", ())]
    if not all(hasattr(field, "_type_adapter") for field in fields):
        return False
    for field in fields:
        field._type_adapter = BriefErrors(field._type_adapter)  # noqa: SLF001 - FastAPI has no other way
    return True
