"""SGLang logs what a plugin raises and serves without it: this one ends the process instead."""

from __future__ import annotations

import sys

import pytest

from sglang_lp import server
from sglang_lp.errors import PolicyError
from sglang_lp.server import hooks


def test_the_guard_is_put_in_place(monkeypatch):
    done = []
    monkeypatch.setattr(hooks, "put_in_place", lambda: done.append(1))

    assert server.install() is None
    assert done == [1]


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


def test_a_plugin_that_cannot_be_imported_ends_the_process(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sglang_lp.server.hooks", None)
    with pytest.raises(SystemExit) as end:
        server.install()

    assert end.value.code == 78
    assert "sglang_lp.server.hooks" in capsys.readouterr().err
