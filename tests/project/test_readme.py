"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import orjson

from sglang_lp import builtins
from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.server.versions import NEWEST, OLDEST

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_screen_says_what_it_is_how_to_try_it_and_where_it_runs() -> None:
    first = "\n".join(README.splitlines()[:32])

    (request,) = re.findall(r"^curl .*?'(\{.*?\})'$", first, re.DOTALL | re.MULTILINE)
    assert orjson.loads(request)["custom_logit_processor"] in builtins.__all__
    assert "pip install sglang-lp\n$ sglang serve" in first
    assert "--enable-custom-logit-processor" in first
    assert f"SGLang {OLDEST} to {NEWEST}" in first
    assert "([how it was measured](docs/performance.md))" in first


def test_the_figures_are_the_stored_ones() -> None:
    stored = orjson.loads((ROOT / "benchmarks/results/gpu-engine.json").read_bytes())
    figures = {
        (one["engine"], one["arm"]): f"{one['step_ms']:.2f} ms"
        for one in stored["runs"]
        if one["requests"] == 256 and one["tokens"] == 256
    }
    (sentence,) = re.findall(r"^On an H200 .*$", README, re.MULTILINE)

    assert stored["device"] == "NVIDIA H200"
    assert re.findall(r"[\d.]+ ms", sentence) == [
        figures[engine, arm] for engine in ("toolkit", "stock") for arm in ("bans", "no processor")
    ]


def test_the_request_is_the_one_of_the_page_for_servers() -> None:
    page = (ROOT / "docs" / "start" / "server.md").read_text()

    assert f"```sh\n{_blocks('sh')[0]}```" in page


def test_a_request_is_named_and_never_pickled() -> None:
    assert not re.search(r"[0-9a-f]{24}", README)


def test_the_example_is_the_one_that_the_tests_run() -> None:
    assert _blocks("python")[0] in (ROOT / "examples" / "quickstart.py").read_text()


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
