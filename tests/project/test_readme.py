"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from sglang_lp import builtins
from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.server.versions import NEWEST, OLDEST

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_example_is_the_one_that_the_tests_run_and_so_is_its_output() -> None:
    source = (ROOT / "examples" / "quickstart.py").read_text()
    shown = source.split('"""')[1].partition("quickstart.py\n")[2]

    assert _blocks("python")[0] in source
    assert _blocks("json") == [shown]


def test_the_processor_of_ones_own_is_the_one_that_the_tests_run() -> None:
    assert _blocks("python")[1] in (ROOT / "examples" / "own_processor.py").read_text()


def test_the_table_names_every_processor_and_no_other() -> None:
    in_table = set(re.findall(r"^\| `(\w+)`", README, re.MULTILINE))
    families = {
        name
        for name in builtins.__all__
        if issubclass(getattr(builtins, name), ThinkingBudgetLogitProcessor)
    }

    assert in_table == set(builtins.__all__) - families | {"ThinkingBudgetLogitProcessor"}


def test_every_page_that_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]

    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_versions_are_those_that_the_plugin_accepts() -> None:
    assert f"SGLang {OLDEST} to {NEWEST}" in README
