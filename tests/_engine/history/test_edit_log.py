"""The edit log against sets of positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.history import edit_log
from sglang_lp._engine.history.edit_log import EditLog


def positions(spans):
    return [at for start, stop in spans for at in range(start, stop)]


@pytest.fixture(autouse=True)
def _few_spans(monkeypatch):
    monkeypatch.setattr(edit_log, "_MAX_SPANS", 4)


@given(
    kinds=st.lists(st.sampled_from(["nothing", "edited", "forced"]), max_size=60),
    beyond=st.integers(0, 20),
    since=st.integers(0, 3),
)
def test_a_report_has_the_positions_of_the_answer_and_says_how_far_it_tells(kinds, beyond, since):
    log = EditLog()
    for position, kind in enumerate(kinds, since):
        if kind != "nothing":
            log.add(position, forced=kind == "forced")
    length = max(0, len(kinds) - beyond)

    log.finish([0] * (since + length))
    report = log.report(since, length)

    kept = kinds[:length]
    assert report["forced"] == kept.count("forced")
    told = length if report["truncated"] is None else report["truncated"]
    assert positions(report["forced_at"]) == [
        at for at, kind in enumerate(kept[:told]) if kind == "forced"
    ]
    assert positions(report["edited"]) == [
        at for at, kind in enumerate(kept[:told]) if kind == "edited"
    ]


@given(start=st.integers(0, 9), length=st.integers(0, 20), forced=st.booleans())
def test_persistent_edits_end_with_the_answer(start, length, forced):
    log = EditLog()
    log.set_persistent(start, exist=True, forced=forced)

    log.finish([0] * length)
    report = log.report(0, length)

    found = [*range(start, length)]
    assert positions(report["forced_at"]) == (found if forced else [])
    assert positions(report["edited"]) == ([] if forced else found)
    assert report["forced"] == (len(found) if forced else 0)
