"""The examples do what they say."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from sglang_lp.client import attach

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed_by(name):
    result = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=True
    )
    assert not result.stderr
    return result.stdout


def promised_by(name):
    """Return the output that the docstring shows after the command."""
    source = (EXAMPLES / name).read_text()
    return source.split(f"$ python examples/{name}\n")[1].split('"""')[0]


@pytest.mark.parametrize("name", ["banned_words.py", "own_processor.py", "quickstart.py"])
def test_the_output_is_what_the_docstring_shows(name):
    assert printed_by(name) == promised_by(name)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_compiles_and_says_how_it_is_run(path):
    compile(path.read_text(), path, "exec")
    assert f"python examples/{path.name}" in path.read_text()


@pytest.mark.parametrize(
    "name", ["engine_async.py", "http_generate.py", "openai_client.py", "rollouts.py"]
)
def test_an_example_that_needs_a_server_or_a_model_says_so(name):
    result = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False
    )

    assert result.returncode == 2
    assert result.stderr.startswith(f"usage: {name}")


def test_the_page_on_text_shows_the_example_and_what_it_prints():
    page = (EXAMPLES.parent / "docs" / "text.md").read_text()

    assert printed_by("banned_words.py") in page


def test_the_request_of_the_shell_script_is_what_the_client_makes_with_a_name_for_the_payload():
    script = (EXAMPLES / "curl.sh").read_text()
    bare, body = (
        orjson.loads(part.split("\nJSON\n")[0]) for part in script.split("<<'JSON'\n")[1:]
    )

    chosen = attach("ChoiceLogitProcessor", choices=["four", "five"])
    named = {"custom_logit_processor": "ChoiceLogitProcessor"}
    assert chosen.generate_body(bare) | named == body


def test_the_shell_script_is_valid():
    subprocess.run(["sh", "-n", EXAMPLES / "curl.sh"], check=True)
