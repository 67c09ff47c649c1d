"""``sglang-lp schema``: the JSON schema of a policy file, for editors."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import msgspec
import orjson

from sglang_lp.cli.terminal import say


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "schema",
        help="print the JSON schema of a policy file, for editors",
        description="Print the JSON schema of a policy file. An editor for TOML completes keys "
        "with it, and marks mistakes. Only sglang-lp doctor checks classes and parameters.",
    )
    parser.set_defaults(run=_run)


def _run(_arguments: argparse.Namespace) -> int:
    say(orjson.dumps(make_schema(), option=orjson.OPT_INDENT_2).decode())
    return 0


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of a policy file, made from the types that read it."""
    from sglang_lp import builtins
    from sglang_lp.catalogue.source import CatalogueSource
    from sglang_lp.cli.describe import parse_attributes
    from sglang_lp.policy.adapt import Adapt
    from sglang_lp.policy.file import PolicyFile
    from sglang_lp.policy.sections import LEVELS, Ceiling, Chosen, Profile, Structured
    from sglang_lp.trust import Limits, Pin

    schema = msgspec.json.schema(PolicyFile)
    tables = schema["$defs"]
    for table in tables.values():
        table["description"] = table["description"].partition("\n")[0]
    for kind in (
        PolicyFile,
        Adapt,
        Ceiling,
        Chosen,
        Limits,
        Pin,
        Profile,
        CatalogueSource,
        Structured,
    ):
        about: dict[str, str] = {}
        for base in kind.__mro__:
            about = parse_attributes(inspect.getdoc(base) or "") | about
        keys = tables[kind.__name__]["properties"]
        for field in msgspec.structs.fields(kind):
            description = about[field.name].replace("``", "")
            keys[field.encode_name] = {"description": description, **keys[field.encode_name]}
    name = tables["Chosen"]["properties"]["processor"]
    del name["type"]
    name["anyOf"] = [{"enum": [*builtins.__all__]}, {"type": "string", "pattern": ":"}]
    effort = tables["PolicyFile"]["properties"]["effort"]
    del effort["anyOf"]
    tokens, switch = {"type": "integer"}, {"type": "boolean"}
    effort |= {
        "type": "object",
        "properties": {
            **dict.fromkeys(LEVELS, tokens),
            "answer_room": {**tokens, "minimum": 0},
            "min_answer_tokens": {**tokens, "minimum": 0},
            "fields": switch,
        },
        "additionalProperties": False,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
