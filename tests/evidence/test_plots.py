"""The plots of the evidence show all of their data."""

from matplotlib.figure import Figure

from benchmarks.evidence import plots, report


def test_no_interval_is_cut_off_by_the_edge_of_its_plot(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_args, **_kwargs: drawn.append(self))
    plots.plot(report.PART.stored(), tmp_path)

    assert len(drawn) >= 3
    for figure in drawn:
        (axes,) = figure.axes
        left, right = axes.get_xlim()
        assert all(left <= x <= right for line in axes.lines for x in line.get_xdata())
