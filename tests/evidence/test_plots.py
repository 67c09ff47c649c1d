"""The plots of the evidence show all of their data, in light and dark mode."""

import re

import pytest
from matplotlib.figure import Figure

from benchmarks import svg
from benchmarks.evidence import plots, report

DARK = "@media (prefers-color-scheme: dark)"


def test_no_interval_is_cut_off_by_the_edge_of_its_plot(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, _file: drawn.append(figure))
    plots.plot(report.PART.stored(), tmp_path)

    assert len(drawn) >= 3
    for figure in drawn:
        (axes,) = figure.axes
        left, right = axes.get_xlim()
        assert all(left <= x <= right for line in axes.lines for x in line.get_xdata())


@pytest.mark.parametrize("plot", sorted(plots.FOLDER.glob("*.svg")), ids=lambda plot: plot.stem)
def test_no_text_or_line_of_a_plot_stays_black_on_a_dark_page(plot):
    drawn = plot.read_text()
    assert drawn.count(DARK) == 1
    assert not re.search(r'fill: ?(#000|black)|stroke: ?(#000;|black)|(fill|stroke)="', drawn)


def test_a_saved_figure_follows_dark_mode(tmp_path):
    figure = Figure()
    figure.subplots().plot([1, 2])
    svg.save(figure, tmp_path / "plot.svg")
    assert DARK in (tmp_path / "plot.svg").read_text()
