"""A failed install ends the process; SGLang would log the error and serve without the plugin."""

from __future__ import annotations

import sys

import pytest

from sglang_lp import server
from sglang_lp.errors import PolicyError
from sglang_lp.server.startup import fail_closed, hooks


@pytest.fixture(autouse=True)
def done(monkeypatch):
    """Keep what was done, in its order."""
    done = []
    monkeypatch.setattr(fail_closed, "shut", lambda: done.append("shut"))
    monkeypatch.setattr(hooks, "put_in_place", lambda: done.append("put in place"))
    return done


def test_the_doors_are_shut_before_the_guard_is_put_in_place(done):
    assert server.install() is None
    assert done == ["shut", "put in place"]


@pytest.mark.parametrize("error", [PolicyError("line 3"), ZeroDivisionError("line 3")])
def test_whatever_keeps_the_guard_away_ends_the_process(monkeypatch, capsys, error):
    def fails():
        raise error

    monkeypatch.setattr(hooks, "put_in_place", fails)
    with pytest.raises(SystemExit) as end:
        server.install()

    assert end.value.code == 78
    assert end.value.__cause__ is error
    assert capsys.readouterr().err == "sglang-lp: this process does not serve: line 3\n"


def test_doors_that_cannot_be_shut_end_the_process(monkeypatch):
    monkeypatch.setattr(fail_closed, "shut", lambda: 1 / 0)
    with pytest.raises(SystemExit) as end:
        server.install()

    assert end.value.code == 78


def test_a_plugin_that_cannot_be_imported_ends_the_process(monkeypatch, capsys, done):
    monkeypatch.setitem(sys.modules, "sglang_lp.server.startup.hooks", None)
    with pytest.raises(SystemExit) as end:
        server.install()

    assert end.value.code == 78
    assert "sglang_lp.server.startup.hooks" in capsys.readouterr().err
    assert done == ["shut"]
