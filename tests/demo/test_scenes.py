"""The demo's scenes show what they claim, and the examples run, on the demo's own server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from demo import scenes
from demo.agent import agent
from demo.model import QUESTIONS, ensure_model
from demo.server import serve
from demo.traces import write_traces

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def directory() -> Path:
    return ensure_model()


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    with serve(directory) as base:
        yield base


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "scene",
    [
        scenes.overthinking,
        scenes.budget,
        scenes.bans,
        scenes.no_loop,
        scenes.forced,
        scenes.stock,
    ],
    ids=lambda scene: scene.__name__,
)
def test_a_scene_shows_what_it_claims_and_its_trace_agrees(
    scene, url: str, directory: Path, tmp_path: Path
) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        played = scene(http, scenes.Model.of(directory))

    assert [claim for claim, seen in played.proofs if not seen] == []
    assert played.holds
    [(page, keeps)] = write_traces([played], directory, tmp_path)
    assert keeps, "the trace contradicts what a real server did"
    assert page.stat().st_size > 0


def test_efforts_become_budgets_that_no_request_names(url: str, directory: Path) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        played = scenes.efforts(http, scenes.Model.of(directory))

    assert [claim for claim, seen in played.proofs if not seen] == []
    assert played.holds


def test_json_is_whole_within_its_limit(url: str, directory: Path) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        played = scenes.whole(http, scenes.Model.of(directory))

    assert [claim for claim, seen in played.proofs if not seen] == []
    assert played.holds


def test_the_likeliest_of_several_texts_is_the_right_answer(url: str, directory: Path) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        played = scenes.chances(http, scenes.Model.of(directory))

    assert [claim for claim, seen in played.proofs if not seen] == []
    assert played.holds


def test_answers_out_of_a_catalogue_are_items(url: str, directory: Path) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        played = scenes.catalogue(http, scenes.Model.of(directory))

    assert [claim for claim, seen in played.proofs if not seen] == []
    assert played.holds


def test_attacks_end_themselves_and_nothing_else(url: str, directory: Path, tmp_path: Path) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        played = scenes.attacks(http, scenes.Model.of(directory), tmp_path / "code-has-run")

    assert [claim for claim, seen in played.proofs if not seen] == []
    assert len(played.rows) == 6


@pytest.mark.drafts
def test_a_server_with_drafts_gives_the_same_answers(url: str, directory: Path) -> None:
    model = scenes.Model.of(directory)
    with httpx.Client(base_url=url, timeout=120) as http:
        expected = scenes.answers(http, model)
    with serve(directory, drafts=True) as base, httpx.Client(base_url=base, timeout=120) as http:
        played = [scenes.drafts(http, model, expected), scenes.knowing(http, model)]

    assert [claim for scene in played for claim, seen in scene.proofs if not seen] == []
    assert all(scene.holds for scene in played)


@pytest.mark.drafts
def test_an_agent_keeps_its_calls_at_every_budget(directory: Path) -> None:
    played = agent(directory, scenes.Model.of(directory))

    assert [claim for claim, seen in played.proofs if not seen] == []
    assert played.holds


def test_a_scene_that_does_not_show_its_claim_fails(url: str, directory: Path) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        played = scenes.overthinking(http, scenes.Model.of(directory))
    played.proves("two and two are five", seen=2 + 2 == 5)

    assert not played.holds


def test_the_http_example_answers_with_and_without_a_processor(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example("http_generate").main(url)

    forced, free = capsys.readouterr().out.splitlines()
    assert forced.startswith("'Hello world!")
    assert not free.startswith("'Hello world!")


def test_the_openai_example_limits_the_thinking(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example("openai_client").main(url)

    said = capsys.readouterr().out
    assert said.count("</think>") == 1
    assert QUESTIONS["What is 2 + 3?"] in said
