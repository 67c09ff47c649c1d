"""Type checkers and editors know the parameters and the state of a request."""

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_lp import cli

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_processor.py"
WRONG = """
    def explain(self, request: Request[Params, int]) -> str:
        reveal_type(request.params.at_most)
        reveal_type(request.state)
        return request.params.at_mots
"""


@pytest.mark.slow
def test_mypy_passes_what_new_writes_and_finds_a_misspelt_parameter(tmp_path, monkeypatch):
    own = EXAMPLE.read_text().partition("\n\ndef main")[0]
    (tmp_path / "wrong.py").write_text(own + WRONG)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "at_most"]) == 0

    def said(*files):
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--config-file", "", *files],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    assert "Success: no issues found in 2 source files" in said(
        "at_most/at_most.py", "at_most/test_at_most.py"
    )
    wrong = said("wrong.py")
    assert wrong.count('Revealed type is "int"') == 2
    assert '"Params" has no attribute "at_mots"; maybe "at_most"?' in wrong
