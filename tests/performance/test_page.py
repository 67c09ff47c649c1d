import json

from benchmarks import bounds_report, report, rules


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
