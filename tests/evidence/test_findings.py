"""Findings in answers that were made to contain them; no request is sent twice."""

from __future__ import annotations

import io
import time
from collections import Counter
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.evidence import plots, report
from benchmarks.evidence.answers import Answer, Kept
from benchmarks.evidence.prompts import PROSE, PUZZLES, TABLES
from demo.speaking import PACKAGES, find_speaking_model

spoken = pytest.mark.skipif(
    find_speaking_model() is None or not PACKAGES.exists(),
    reason="no model that speaks; `make evidence` makes it",
)


def test_there_are_two_hundred_prompts_and_none_of_them_twice():
    assert len({*PROSE}) == len(PROSE) >= 200
    assert len({*TABLES}) == len(TABLES)
    assert len({*PUZZLES}) == len(PUZZLES)


@spoken
@pytest.mark.parametrize("section", ["loops", "sampled", "tables", "budgets", "calls"])
def test_no_request_is_in_a_section_twice_and_every_arm_has_all_prompts(section, tmp_path: Path):
    from benchmarks.evidence import arms

    asks = [*arms.SECTIONS[section][0](Kept(tmp_path / "kept"))]
    assert {len({ask.digest for ask in asks})} == {len(asks)}
    assert len({*Counter(ask.arm for ask in asks).values()}) == 1


@spoken
def test_a_loop_a_leak_a_thought_and_a_call_are_found(tmp_path: Path):
    from benchmarks.evidence import arms
    from benchmarks.evidence.findings import findings

    said = {
        "loops": {"none": "the rain fell on and on, " * 5},
        "budgets": {"none": "no end", "16": f"one two three\n{arms.END_THINK}\nfour"},
        "calls": {
            "free": 'so: {"name": "NAME", "arguments": {"a": {"b": 1}}} done',
            "grammar": "{",
            "name, free": 'NAME", "arguments": {}}',
        },
    }
    kept = Kept(tmp_path / "kept")
    for section, (asks, _) in arms.SECTIONS.items():
        for ask in asks(kept):
            text = said.get(section, {}).get(ask.arm)
            if text is not None:
                right = arms.questions()[ask.prompt]["right"] if section == "calls" else ""
                text = text.replace("NAME", right)
                kept.put(ask, Answer(text=text, output_ids=tuple(arms.encode(text))))
    for ask in arms.bans(kept):
        text = f"It is {arms.words(kept)[ask.prompt].upper()}."
        kept.put(ask, Answer(text=text, output_ids=tuple(arms.encode(text)), nats=(0.0, 0.0)))

    found = orjson.loads(orjson.dumps(findings(kept)))
    assert found["loops"]["none"]["loops"][:2] == [len(PROSE)] * 2
    assert found["budgets"]["16"]["median"] == len(arms.encode("one two three\n"))
    assert found["budgets"]["16"]["held"][:2] == [len(PUZZLES)] * 2
    assert found["budgets"]["16"]["answered"][:2] == [len(PUZZLES)] * 2
    assert found["budgets"]["none"]["closed"][0] == 0
    assert found["budgets"]["none"]["held"] is None
    assert [found["calls"][arm]["right"][0] for arm in ("free", "grammar", "name, free")] == [
        arms.CALLS,
        0,
        arms.CALLS,
    ]
    banned = found["bans"]["`words`"]
    assert (banned["leaks"][0], banned["any_case"][0], banned["perplexity"]) == (
        0,
        banned["any_case"][1],
        1.0,
    )
    block = report.page_block({"machine": report.PART.stored()["machine"], **found})
    assert f"{len(PROSE)} of {len(PROSE)} (98-100 %)" in block
    assert "### Tokens a second\n\nNot reached in this run." in block
    rates = {"none": {"1": [8.0]}, "DRY": {"1": [4.0]}}
    plots.plot({**found, "speed": {"this toolkit": rates}}, tmp_path)
    assert {file.name for file in tmp_path.glob("*.svg")} == {
        f"evidence-{section}.svg" for section in ("loops", "bans", "budgets", "speed")
    }


@spoken
def test_nothing_is_asked_twice_and_a_section_leaves_the_time_that_it_does_not_need(tmp_path: Path):
    from benchmarks.evidence import arms
    from benchmarks.evidence.sharing import MEASURED, Time, unanswered

    kept, servers = Kept(tmp_path / "kept"), [arms.OURS, arms.DRAFTS]
    at_first = Time(1000, servers, kept).for_section(arms.OURS, "budgets") - time.monotonic()
    for section in ("calls", "sampled", "tables"):
        for ask in unanswered(kept, arms.OURS, section):
            kept.put(ask, Answer(text="yes"))
        assert not unanswered(kept, arms.OURS, section)
    shared = Time(1000, servers, kept)
    later = shared.for_section(arms.OURS, "budgets") - time.monotonic()
    assert 0 < at_first < later < 1000
    last = shared.for_section(arms.DRAFTS, "budgets") - time.monotonic()
    assert last == pytest.approx(1000 * (1 - MEASURED.get(arms.DRAFTS, 0)), abs=60)


@spoken
def test_a_run_that_is_over_starts_no_server(tmp_path: Path, monkeypatch):
    from benchmarks.evidence import __main__ as run
    from benchmarks.evidence.asking import SERVERS
    from benchmarks.evidence.sharing import Time

    monkeypatch.setattr(run, "start", lambda server: pytest.fail(f"{server} was started"))
    kept = Kept(tmp_path / "kept")
    with Progress(console=Console(file=io.StringIO())) as progress:
        for server in SERVERS:
            run._visit(server, kept, Time(0, [*SERVERS], kept), progress, {})
