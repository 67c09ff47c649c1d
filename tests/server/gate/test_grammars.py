"""Schemas with which xgrammar ends SGLang's scheduler are refused, and others pass."""

from __future__ import annotations

import json

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.gate.field_checks import check_sampling
from sglang_lp.server.gate.request_fields import MAX_EBNF, MAX_REGEX, MAX_SCHEMA

NESTED = {"type": "string", "pattern": "(" * 50_000 + "a" + ")" * 50_000}


def chain(length, wrap=lambda part: part):
    """Return a schema of definitions, each of which names the next."""
    following = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$defs": {**following, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def in_object(part):
    return {"type": "object", "properties": {"a": part}, "required": ["a"]}


def tag(schema):
    return {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}


# The first three ended the process that compiled them by a signal; 400 levels took it 12 s.
ENDING = {
    "pattern": NESTED,
    "definitions": chain(30_000),
    "definitions of objects": chain(4_096, in_object),
    "levels": json.loads('{"type": "array", "items": ' * 500 + "{}" + "}" * 500),
    "names": {"patternProperties": {"(" * 50_000 + "a" + ")" * 50_000: {}}},
}


@pytest.mark.parametrize("schema", ENDING.values(), ids=ENDING)
def test_a_schema_that_ends_a_scheduler_is_refused(schema):
    for name, text in (("json_schema", schema), ("structural_tag", tag(schema))):
        with pytest.raises(RequestError, match=f"^{name}: expected"):
            check_sampling({name: json.dumps(text)}, 9)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("regex", "a?" * MAX_REGEX),
        ("ebnf", 'root ::= "a"' + " " * MAX_EBNF),
        ("json_schema", json.dumps({"description": "a" * MAX_SCHEMA})),
        ("json_schema", "{"),
        ("structural_tag", json.dumps({"format": {"type": "regex", "pattern": "a?" * MAX_REGEX}})),
    ],
    ids=["regex", "ebnf", "schema", "no JSON", "regex in a tag"],
)
def test_a_grammar_that_takes_too_long_or_is_none_is_refused(name, text):
    with pytest.raises(RequestError, match=f"^{name}: expected"):
        check_sampling({name: text}, 9)


def test_ordinary_grammars_pass():
    tools = [chain(3, in_object) for _ in range(2_000)]
    wide = {"anyOf": [chain(2, in_object)] * 500}
    for one in (
        {"json_schema": "$$ANY$$"},
        {"json_schema": json.dumps({"type": "object", "properties": {"pattern": {}}})},
        {"json_schema": json.dumps(chain(1_000, in_object))},
        {"json_schema": json.dumps(wide)},
        {"structural_tag": json.dumps({"format": {"elements": [*map(tag, tools)]}})},
        {"regex": "a" * MAX_REGEX},
    ):
        check_sampling(one, 9)
