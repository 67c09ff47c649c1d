import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bounds import report as bounds
from benchmarks.cost.report import Figure
from benchmarks.drafts.report import promises
from benchmarks.pages import Part, with_block
from benchmarks.renew import PARTS
from benchmarks.stored import FOLDER, as_json
from benchmarks.tables import duration
from support.settings import ROOT


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_page_says_what_the_stored_results_say(part: Part):
    text = (ROOT / "docs" / part.page).read_text()

    assert with_block(text, part.name, part.block(part.stored())) == text


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.name)
def test_a_result_is_stored_as_a_run_would_store_it(file):
    assert as_json(orjson.loads(file.read_bytes())) == file.read_bytes()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
)


@given(VALUES)
def test_what_is_stored_is_json_of_the_same_value_with_one_record_a_line(value):
    stored = as_json(value)

    assert orjson.loads(stored) == value
    records = [{"key": "a", "us": 1.5}, {"key": "b", "runs": [1, 2]}]
    assert as_json({"cases": records}).decode().splitlines() == [
        "{",
        '  "cases": [',
        '    {"key":"a","us":1.5},',
        "    {",
        '      "key": "b",',
        '      "runs": [1,2]',
        "    }",
        "  ]",
        "}",
    ]


def test_a_duration_has_the_unit_that_suits_it():
    assert [duration(us) for us in (None, 0.5, 999, 1500, 2.5e6)] == [
        *("-", "0.5 µs", "999 µs", "1.5 ms", "2.5 s"),
    ]


def test_a_block_is_written_between_the_marks_of_its_benchmark_alone():
    page = "a\n<!-- begin: benchmarks.b -->\nold\n<!-- end: benchmarks.b -->\nz\n"

    assert with_block(page, "b", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="substring not found"):
        with_block(page, "c", "new")


def test_a_figure_above_its_limit_is_missed():
    figure = Figure("any", stock_us=10.0, ours_us=1.1, limit_us=1.0, limit="stock / 10")

    assert not figure.met
    assert figure._replace(ours_us=1.0).met


def test_a_request_over_a_limit_is_named_with_the_limit():
    case = {
        "rows": 8,
        "texts": 1,
        "admitted_ms": 25.0,
        "received_ms": 25.0,
        "first_ms": 8.0,
        "each_ms": 1.0,
        "most_ms": 8.0,
        "joined_ms": 3.0,
        "left_ms": 3.0,
        "held_mib": 64.0,
    }

    fill = 0.01  # ms: limits of 1 ms a row, 25 ms in all, and 2 ms for a neighbour
    assert bounds.missed(case, fill) == []
    assert bounds.missed(case | {"most_ms": 8.1, "left_ms": 3.1}, fill) == [
        "each step",
        "neighbour",
    ]
    assert bounds.missed(case | {"rows": 256, "first_ms": 25.1}, fill) == ["first step"]
    assert bounds.missed(case | {"held_mib": 64.1}, fill) == ["memory"]
    assert bounds.missed(case | {"held_mib": 64.1, "texts": 2}, fill) == []
    assert bounds.missed(case, fill / 2) == [
        *("HTTP process", "scheduler", "first step", "each step", "neighbour")
    ]


def figures_of_drafts(*, us, waits, own_us, accept_length, steps):
    """Return results in which a rule with a long history costs as much as with a short one."""
    return {
        "rows": 16,
        "nodes": 5,
        "rules": [
            {"rule": rule, "history": history, "step_us": us, "node_us": us}
            for rule in ("idle budget", "spent budget", "forced sequence", "n-gram rule")
            for history in (1024, 16_384)
        ],
        "engines": [
            {
                "engine": engine,
                "processor": processor,
                "steps": 10_000,
                "waits": waits,
                "delayed": 0,
                "step_us": 20_000.0,
                "own_us": own_us,
                "accept_length": accept_length if processor == "idle budget" else 2.5,
            }
            for engine in ("large vocabulary", "ordinary", "EAGLE")
            for processor in ("none", "idle budget")
        ],
        "foresight": [
            {
                "engine": "EAGLE",
                "case": f"{free} free tokens",
                "free": free,
                "steps_with": steps,
                "steps_without": 30.0,
            }
            for free in (0, 20)
        ],
    }


def test_a_promise_about_drafts_is_met_or_missed():
    kept = figures_of_drafts(us=15.0, waits=0, own_us=200.0, accept_length=2.5, steps=10.0)
    broken = figures_of_drafts(us=50.1, waits=1, own_us=200.1, accept_length=2.4, steps=10.1)

    assert all(one.met for one in promises(kept))
    met = [one.met for one in promises(broken)]
    assert met == [False, True] * 4 + [False] * 4
