"""Random JSON schemas, of the keywords that xgrammar enforces."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_NAMES = ("a", "b", "name", "items", "äh", "x y")


def _strings() -> st.SearchStrategy[dict[str, Any]]:
    lengths = st.integers(0, 12).flatmap(
        lambda low: st.fixed_dictionaries(
            {"type": st.just("string"), "minLength": st.just(low)},
            optional={"maxLength": st.integers(low, low + 9)},
        )
    )
    patterns = st.sampled_from(["^[a-z]{2,5}$", "^[A-Z]{2}-[0-9]{3,9}$", "^(ab|c[0-9])+x$"])
    return st.one_of(
        st.just({"type": "string"}),
        lengths,
        patterns.map(lambda pattern: {"type": "string", "pattern": pattern}),
    )


def _numbers() -> st.SearchStrategy[dict[str, Any]]:
    ranges = st.tuples(st.integers(-2000, 2000), st.integers(0, 3000))
    return st.one_of(
        st.just({"type": "integer"}),
        st.just({"type": "number"}),
        ranges.map(lambda one: {"type": "integer", "minimum": one[0], "maximum": sum(one)}),
    )


def _enumerations() -> st.SearchStrategy[dict[str, Any]]:
    values = st.sampled_from(["red", "green", "äh, a long answer", "", 12, None, True, 0.5])
    return st.lists(values, min_size=1, max_size=4, unique_by=repr).map(lambda some: {"enum": some})


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def make(properties: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        required = st.lists(st.sampled_from(sorted(properties)), unique=True)
        return required.map(
            lambda names: {
                "type": "object",
                "properties": properties,
                "required": names,
                "additionalProperties": False,
            }
        )

    fixed = st.dictionaries(st.sampled_from(_NAMES), inner, min_size=1, max_size=4).flatmap(make)
    free = inner.map(lambda one: {"type": "object", "additionalProperties": one})
    return st.one_of(fixed, free)


def _arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.integers(0, 4).flatmap(
        lambda low: st.fixed_dictionaries(
            {"minItems": st.just(low)}, optional={"maxItems": st.integers(max(low, 1), low + 3)}
        )
    )
    return st.builds(lambda item, size: {"type": "array", "items": item, **size}, inner, sizes)


def _choices(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some})


#: A schema that refers to itself: a list of lists, or a tree.
_RECURSIVE = st.sampled_from(
    [
        {
            "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
            "$ref": "#/$defs/n",
        },
        {
            "$defs": {
                "n": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": {"left": {"$ref": "#/$defs/n"}},
                            "required": ["left"],
                            "additionalProperties": False,
                        },
                        {"type": "integer", "minimum": 5},
                    ]
                }
            },
            "$ref": "#/$defs/n",
        },
    ]
)


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for schemas."""
    leaves = st.one_of(
        _strings(), _numbers(), _enumerations(), st.sampled_from([{"type": "boolean"}, {}])
    )
    nested = st.recursive(
        leaves,
        lambda inner: st.one_of(_objects(inner), _arrays(inner), _choices(inner)),
        max_leaves=6,
    )
    return st.one_of(nested, _RECURSIVE)
