"""Tokenizer workers import SGLang's app through the guard."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.startup import installation, launch, workers
from sglang_lp.server.startup.launch import check_launch

PATH = "SGLANG_HTTP_SERVER_APP_PATH"
FINGERPRINT = "SGLANG_LP_FINGERPRINT"


@pytest.fixture
def started_with(monkeypatch, guard):
    """Check a launch with so many workers; returns where they would import their app from."""
    from sglang.srt.server_args import ServerArgs

    for name in (PATH, FINGERPRINT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(workers, "installed_guard", lambda: guard)

    def started_with(count):
        check_launch(ServerArgs(model_path="none", tokenizer_worker_num=count))
        return os.environ.get(PATH)

    return started_with


def test_several_workers_import_their_app_from_behind_the_guard(started_with, guard):
    assert started_with(2) == "sglang_lp.server.startup.workers:app"
    assert os.environ[FINGERPRINT] == guard.fingerprint
    assert started_with(2) == "sglang_lp.server.startup.workers:app"  # checked twice at a start


def test_one_worker_is_left_as_it_is(started_with):
    assert started_with(1) is None


def test_an_app_of_somebody_else_is_refused(started_with, monkeypatch, capfd):
    monkeypatch.setenv(PATH, "my.server:app")
    with pytest.raises(SystemExit):
        started_with(2)

    assert "names another app, my.server:app" in capfd.readouterr().err


def test_workers_are_refused_where_sglang_cannot_be_led(started_with, monkeypatch, capfd):
    monkeypatch.setattr(launch, "can_be_guarded", lambda: False)
    with pytest.raises(SystemExit):
        started_with(2)

    assert "--tokenizer-worker-num above 1" in capfd.readouterr().err


def test_an_engine_writes_where_it_can_be_joined_through_the_guarded_function():
    from sglang.srt.entrypoints.engine import Engine

    assert "write_data_for_multi_tokenizer" in Engine.__init__.__code__.co_names


def test_a_worker_answers_with_the_middleware_of_a_single_front_end(monkeypatch, guard):
    from sglang.srt import plugins
    from sglang.srt.entrypoints.http_server import ORJSONRequest, app

    def added(add):
        with monkeypatch.context() as patch:
            patch.setattr(app, "user_middleware", [])
            for parse in ("json", "form"):  # of every app in this process
                patch.setattr(ORJSONRequest, parse, getattr(ORJSONRequest, parse))
            add()
            return [(one.cls, one.kwargs) for one in app.user_middleware]

    monkeypatch.setattr(plugins, "load_plugins", lambda: None)
    monkeypatch.setattr(workers, "installed_guard", lambda: guard)
    monkeypatch.setattr(installation, "schedulers_are_guarded", False)
    monkeypatch.setenv(FINGERPRINT, guard.fingerprint)
    manager = SimpleNamespace(server_args=SimpleNamespace(enable_metrics=False))

    in_worker = added(lambda: workers.app)
    assert len(in_worker) == 3
    begin = launch.Launch(guard, PendingResults()).begin_front
    assert in_worker == added(lambda: begin(None, manager))


def test_the_module_has_nothing_else_to_import():
    with pytest.raises(AttributeError, match="no attribute 'application'"):
        _ = workers.application
