"""The JSON schema of a policy and the reader of policies agree on every file."""

import re
import tomllib
from pathlib import Path

import jsonschema
import pytest

from sglang_lp.cli import main
from sglang_lp.cli.schema import make_schema
from sglang_lp.errors import PolicyError
from sglang_lp.policy import Policy

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "policy.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(make_schema())


def policies():
    """Return every policy of the documentation and of the servers of the tests."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    for page in pages:
        yield from re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for file in [*ROOT.glob("support/**/*.toml"), *ROOT.glob("deploy/**/policy*.toml")]:
        yield file.read_text()


def test_the_file_of_the_documentation_is_current(capsys):
    assert main(["schema"]) == 0
    assert SCHEMA.read_text() == capsys.readouterr().out, (
        "write it anew with `sglang-lp schema > docs/policy.schema.json`"
    )


def test_it_is_a_schema_that_describes_every_key():
    VALIDATOR.check_schema(VALIDATOR.schema)
    tables = VALIDATOR.schema["$defs"]

    for table in (one for one in tables.values() if one.get("type") == "object"):
        assert all(key["description"] for key in table["properties"].values())


def test_every_key_of_a_policy_is_on_a_page_of_the_documentation():
    pages = "\n".join(page.read_text() for page in ROOT.glob("docs/**/*.md"))
    tables = [VALIDATOR.schema, *VALIDATOR.schema["$defs"].values()]
    keys = {key for table in tables for key in table.get("properties", {})}

    assert len(keys) > 30
    assert {key for key in keys if not re.search(rf"[`\[\". \n]{key}[`\]\". ]", pages)} == set()


def test_every_policy_that_is_shown_or_served_is_valid(tmp_path):
    shown = [*policies()]

    assert len(shown) >= 20
    for text in shown:
        path = tmp_path / "policy.toml"
        path.write_text(text)
        try:
            Policy.from_toml(path)
        except PolicyError:
            assert not VALIDATOR.is_valid(tomllib.loads(text)), text
        else:
            VALIDATOR.validate(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "builtin = true",
        "builtins = 1",
        "stock = 'alow'",
        "allow = 'a:B'",
        "[defaults]\nthinking_budget = 3",
        "[defaults]\nprocessor = 'BadWords'",
        "[ceilings]\nthinking_budget = 3",
        "[ceilings]\nthinking_budget = {at_most = 3, above = 'cut'}",
        "[effort]\nlowest = 3",
        "[effort]\nfields = 3",
        "[effort]\nlow = true",
        "[[pin]]\nname = 'x'",
        "[limits]\nlogged = 3",
    ],
)
def test_a_mistake_is_one_to_an_editor_too(text):
    assert not VALIDATOR.is_valid(tomllib.loads(text))
