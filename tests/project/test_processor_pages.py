"""The pages of the processors agree with their classes."""

import json
import re
from pathlib import Path

from scripts.processors import FOLDER, LIST, TITLES, find_base, write_pages
from sglang_lp import builtins
from sglang_lp.client import attach

ROOT = Path(__file__).parents[2]
NAMES = {name for name in builtins.__all__ if find_base(getattr(builtins, name)) is None}
PAGES = {name: (ROOT / FOLDER / f"{name}.md").read_text() for name in NAMES}


def test_the_pages_are_current():
    written = write_pages()
    stored = {path.relative_to(ROOT) for path in (ROOT / FOLDER).glob("*.md")} | {LIST}
    stale = [path for path, text in written.items() if (ROOT / path).read_text() != text]

    assert (stored - {*written}, stale) == (set(), []), (
        "write the pages anew with `.venv/bin/python -m scripts.processors`"
    )


def test_every_processor_has_a_title_of_its_own():
    titles = [title for group in TITLES.values() for title in group.values()]

    assert {name for group in TITLES.values() for name in group} == NAMES
    assert len({*titles}) == len(titles)


def test_the_request_of_a_page_carries_the_example():
    for name, page in PAGES.items():
        (body,) = map(json.loads, re.findall(r"-d '(\{.*?\n\})'", page, re.DOTALL))

        assert body["custom_logit_processor"] == name
        assert body["sampling_params"]["custom_params"] == getattr(builtins, name).example


def test_the_python_of_a_page_makes_the_request_of_the_example():
    for page in PAGES.values():
        (code,) = re.findall(r"^processor = (.+?)^answer", page, re.DOTALL | re.MULTILINE)
        made = eval(code, {"attach": attach})

        assert made.custom_params == made.processor.example


def test_an_old_address_of_a_processor_is_on_the_list():
    listed = (ROOT / LIST).read_text()

    assert {*re.findall(r'<a id="(\w+)">', listed)} == {name.lower() for name in NAMES}
