"""A bound on the recursion of xgrammar, which compiles the grammars of requests.

It goes down a level for each part in a part of a schema, for each group in a group of a pattern,
and for each definition that ``$ref`` names. Where the stack of a thread is too small for that,
SGLang's scheduler ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import orjson

from sglang_lp.errors import RequestError
from sglang_lp.server.gate.request_fields import MAX_REGEX

#: Most lists and objects in each other. The time to compile a schema grows with their cube.
MAX_LEVELS = 128
#: Most lists and objects in each other with those of definitions: 16,384 ended a scheduler.
MAX_DEFINED = 4_096
#: SGLang's schema of any JSON.
_ANY = "$$ANY$$"
#: Keys of a structural tag whose values are schemas, each with its own definitions.
_SCHEMAS = frozenset(("json_schema", "schema"))
#: Keys whose texts are compiled.
_PATTERNS = frozenset(("grammar", "pattern"))
_CONTAINERS = (dict, list)


def check_grammars(read: Callable[[str], Any]) -> None:
    """Check the schemas of a request.

    Args:
        read: Return a sampling parameter, or ``None``, given its name.

    Raises:
        RequestError: One is no JSON, or so deep that compiling it could end a scheduler.
    """
    for name, apart in (("json_schema", frozenset[str]()), ("structural_tag", _SCHEMAS)):
        text = read(name)
        if text is None or text == _ANY:
            continue
        try:
            whole = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise RequestError(f"{name}: expected JSON, got other text: {error}") from None
        for schema in _check(name, whole, apart):
            _check(name, schema)


def _check(name: str, schema: Any, apart: frozenset[str] = frozenset()) -> list[Any]:
    """Check one schema.

    Args:
        name: The sampling parameter.
        schema: The schema.
        apart: Keys whose values have definitions of their own.

    Returns:
        The values of these keys.
    """
    levels = parts = characters = 0
    defined, others = set(), []
    level = [schema] if isinstance(schema, _CONTAINERS) else []
    while level:
        levels, parts = levels + 1, parts + len(level)
        if levels > MAX_LEVELS:
            raise RequestError(
                f"{name}: expected at most {MAX_LEVELS} lists and objects in each other, got more"
            )
        inner = []
        for key, value in chain.from_iterable(map(_entries, level)):
            if key in apart:
                others.append(value)
            elif isinstance(value, _CONTAINERS):
                inner.append(value)
            elif key in _PATTERNS:
                characters += len(str(value))
            elif key == "$ref":
                defined.add(value)
        level = inner
    if characters > MAX_REGEX:
        raise RequestError(
            f"{name}: expected at most {MAX_REGEX} characters in its patterns, got {characters}"
        )
    if defined and min(parts, levels * (len(defined) + 1)) > MAX_DEFINED:
        raise RequestError(
            f"{name}: expected definitions of at most {MAX_DEFINED} lists and objects in each "
            f"other, got {len(defined)} in {levels} levels; use fewer"
        )
    return others


def _entries(part: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield the values of a list or an object with their keys; names that are patterns as such."""
    if isinstance(part, list):
        yield from ((None, value) for value in part)
        return
    yield from part.items()
    names = part.get("patternProperties")
    if isinstance(names, dict):
        yield from (("pattern", name) for name in names)
