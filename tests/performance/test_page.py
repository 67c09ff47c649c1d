import json

from benchmarks import report


def test_the_page_says_what_the_stored_results_say():
    results = json.loads(report.RESULTS.read_text())

    assert report.page_block(results) in report.PAGE.read_text()


def test_a_figure_above_its_limit_is_missed():
    figure = report.Figure("any", stock_us=10.0, ours_us=1.1, limit_us=1.0, limit="stock / 10")

    assert not figure.met
    assert figure._replace(ours_us=1.0).met
