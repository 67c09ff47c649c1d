"""Type checkers and editors know the parameters and the state of a request."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "processor.md"
WRONG = """
    def explain(self, request: Request[Params, int]) -> str:
        reveal_type(request.params.at_most)
        reveal_type(request.state)
        return request.params.at_mots
"""


@pytest.mark.slow
def test_mypy_knows_the_parameters_of_the_page_and_finds_a_misspelt_one(tmp_path):
    own, *_, letters, _ = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "right.py").write_text(own)
    (tmp_path / "letters.py").write_text(letters)
    (tmp_path / "wrong.py").write_text(own + WRONG)

    def said(*files):
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--config-file", "", *files],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    assert "Success: no issues found in 2 source files" in said("right.py", "letters.py")
    wrong = said("wrong.py")
    assert wrong.count('Revealed type is "int"') == 2
    assert '"Params" has no attribute "at_mots"; maybe "at_most"?' in wrong
