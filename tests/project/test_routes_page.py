"""The page of routes agrees with their table."""

from pathlib import Path

from scripts.routes import PAGE, write_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    assert (ROOT / PAGE).read_text() == write_page(), (
        "docs/routes.md is not what the table says; write it anew with "
        "`.venv/bin/python -m scripts.routes`"
    )
