import json

from benchmarks import adapters, bounds_report, drafts_report, report, rules, strict, text


def test_the_page_says_what_the_stored_results_say():
    results = json.loads(report.RESULTS.read_text())

    assert report.page_block(results) in report.PAGE.read_text()


def test_a_figure_above_its_limit_is_missed():
    figure = report.Figure("any", stock_us=10.0, ours_us=1.1, limit_us=1.0, limit="stock / 10")

    assert not figure.met
    assert figure._replace(ours_us=1.0).met


def test_the_page_says_what_the_stored_bounds_say():
    results = json.loads(bounds_report.RESULTS.read_text())

    assert bounds_report.page_block(results) in bounds_report.PAGE.read_text()


def test_the_page_says_what_the_stored_cost_of_decisions_says():
    results = json.loads(rules.RESULTS.read_text())

    assert rules.page_block(results) in rules.PAGE.read_text()


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

    assert bounds_report.missed(case) == []
    assert bounds_report.missed(case | {"most_ms": 8.1, "left_ms": 3.1}) == [
        "each step",
        "neighbour",
    ]
    assert bounds_report.missed(case | {"rows": 256, "first_ms": 25.1}) == ["first step"]
    assert bounds_report.missed(case | {"held_mib": 64.1}) == ["memory"]
    assert bounds_report.missed(case | {"held_mib": 64.1, "texts": 2}) == []


def test_the_page_says_what_the_stored_costs_of_adapters_say():
    results = json.loads(adapters.RESULTS.read_text())

    assert adapters.page_block(results) in adapters.PAGE.read_text()


def test_the_page_says_what_the_stored_costs_of_texts_say():
    results = json.loads(text.RESULTS.read_text())

    assert text.page_block(results) in report.PAGE.read_text()


def test_the_page_says_what_strict_thinking_did():
    results = json.loads(strict.RESULTS.read_text())

    assert strict.page_block(results) in strict.PAGE.read_text()


def test_the_page_says_what_the_stored_figures_of_drafts_say():
    results = json.loads(drafts_report.RESULTS.read_text())

    assert drafts_report.page_block(results) in drafts_report.PAGE.read_text()


def figures_of_drafts(*, us, waits, own_us, accept_length):
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
    }


def test_a_promise_about_drafts_is_met_or_missed():
    kept = figures_of_drafts(us=15.0, waits=0, own_us=200.0, accept_length=2.5)
    broken = figures_of_drafts(us=50.1, waits=1, own_us=200.1, accept_length=2.4)

    assert all(one.met for one in drafts_report.promises(kept))
    met = [one.met for one in drafts_report.promises(broken)]
    assert met == [False, True] * 4 + [False] * 3
