"""Neither a front end nor a scheduler begins in a process without the whole guard."""

from __future__ import annotations

import pytest

from sglang_lp.server.startup import installation
from sglang_lp.server.startup.fail_closed import shut


@pytest.fixture(params=["TokenizerManager", "Scheduler"])
def door(request, sglang, monkeypatch):
    """One of SGLang's classes, guarded; ``begun`` has the arguments of its objects."""
    from sglang.srt import utils
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    cls = {"TokenizerManager": TokenizerManager, "Scheduler": Scheduler}[request.param]
    cls.begun, cls.killed = [], []

    def begin(self, *args, **kwargs):
        cls.begun.append((type(self), args, kwargs))

    monkeypatch.setattr(cls, "__init__", begin)
    monkeypatch.setattr(utils, "kill_process_tree", lambda *a, **k: cls.killed.append((a, k)))
    shut()
    yield cls
    del cls.begun, cls.killed


@pytest.fixture
def stands(monkeypatch):
    monkeypatch.setattr(installation, "installed_guard", lambda: "a guard")
    monkeypatch.setattr(installation, "schedulers_are_guarded", True)


def test_it_opens_where_the_guard_stands_and_for_what_derives_from_it(door, stands):
    door("server args", port_args="port args")
    derived = type("Derived", (door,), {})
    derived("more")

    assert door.begun == [
        (door, ("server args",), {"port_args": "port args"}),
        (derived, ("more",), {}),
    ]
    assert door.killed == []


def refused(door, capfd):
    with pytest.raises(SystemExit) as end:
        door("server args", "port args")
    assert end.value.code == 78
    assert door.begun == []
    # Or Python would wait at its end for children that wait for requests.
    assert [kwargs for _, kwargs in door.killed] == [{"include_parent": False}]
    return capfd.readouterr().err


def test_it_stays_shut_without_the_guard(door, stands, monkeypatch, capfd):
    monkeypatch.setattr(installation, "installed_guard", lambda: None)

    assert refused(door, capfd).endswith("the guard is not in place in this process\n")


def test_it_stays_shut_where_schedulers_were_started_past_the_guard(
    door, stands, monkeypatch, capfd
):
    monkeypatch.setattr(installation, "schedulers_are_guarded", False)

    assert "schedulers were not started by SGLang's own Engine" in refused(door, capfd)
