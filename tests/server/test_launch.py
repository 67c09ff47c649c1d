"""Checks at start-up: no process without the guard, and one policy in all of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_lp.server import launch
from sglang_lp.server.launch import check_launch, make_guard_schedulers, make_learn, run_guarded
from sglang_lp.server.pending import PendingResults
from sglang_lp.trust import Gate


def engine(module):
    return SimpleNamespace(__module__=module)


ENGINE = engine("sglang.srt.entrypoints.engine")


@pytest.mark.parametrize(
    "arguments", [{}, {"tokenizer_worker_num": 1}, {"tokenizer_worker_num": 1, "use_ray": False}]
)
def test_a_server_whose_processes_all_load_plugins_starts(arguments):
    # A value would replace SGLang's arguments.
    assert check_launch(ENGINE, SimpleNamespace(**arguments), "more", of="SGLang's") is None
    assert check_launch(engine("my.array_tools"), SimpleNamespace(**arguments)) is None


@pytest.mark.parametrize(
    ("cls", "arguments", "why"),
    [
        (
            ENGINE,
            {"tokenizer_worker_num": 2},
            "--tokenizer-worker-num 2: SGLang loads no plugin in tokenizer workers",
        ),
        (ENGINE, {"use_ray": True}, "Ray: SGLang loads no plugin in its actors"),
        (engine("sglang.srt.ray.engine"), {}, "Ray: SGLang loads no plugin in its actors"),
    ],
)
def test_a_server_with_processes_that_load_no_plugin_does_not_start(capfd, cls, arguments, why):
    with pytest.raises(SystemExit) as end:
        check_launch(cls, SimpleNamespace(**arguments))

    assert end.value.code == 78
    assert capfd.readouterr().err.endswith(f": {why}\n")


# A scheduler process


@pytest.fixture
def scheduler(monkeypatch, guard):
    """Play a scheduler process; returns what became of it with a guard, or without."""
    from sglang.srt import plugins

    done = []
    monkeypatch.setattr(plugins, "load_plugins", lambda: done.append("plugins"))

    def scheduler(here, fingerprint=guard.fingerprint):
        monkeypatch.setattr(launch, "installed_guard", lambda: here)
        run_guarded(lambda *args, **kwargs: done.append((args, kwargs)), fingerprint, 1, two=2)
        return done

    return scheduler


def test_a_scheduler_loads_its_plugins_and_runs_if_the_guard_is_there(scheduler, guard):
    assert scheduler(guard) == ["plugins", ((1,), {"two": 2})]


@pytest.mark.parametrize("missing", [True, False])
def test_a_scheduler_without_this_policys_guard_does_not_run(capfd, scheduler, guard, missing):
    why = (
        "SGLang did not load the plugin in a scheduler process"
        if missing
        else "a scheduler process has another policy than the process that started it"
    )
    with pytest.raises(SystemExit) as end:
        scheduler(None) if missing else scheduler(guard, "another")

    assert end.value.code == 78
    assert capfd.readouterr().err.endswith(f": {why}\n")


def test_schedulers_are_started_through_that_check_in_the_new_process(guard, monkeypatch):
    done = []

    def guarded(*args, **kwargs):
        done.append((args, kwargs))

    def sglangs(cls, server_args, port_args, run, *args, **kwargs):
        run("scheduler's", own="arguments")
        return cls, server_args, port_args, args, kwargs

    def run():
        pass

    monkeypatch.setattr(launch, "run_guarded", guarded)
    around = make_guard_schedulers(guard)
    result = around(sglangs, ENGINE, "server", "port", run, "more", placement_group="group")

    assert result == (ENGINE, "server", "port", ("more",), {"placement_group": "group"})
    assert done == [((run, guard.fingerprint, "scheduler's"), {"own": "arguments"})]


@pytest.mark.parametrize("tokenizer", [None, "its tokenizer"])
def test_in_the_scheduler_it_becomes_known_what_is_served(guard, tokenizer):
    served = SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=77),
        server_args=SimpleNamespace(speculative_algorithm="eagle"),
    )
    if tokenizer:
        served.tokenizer = tokenizer
    # A value would replace what SGLang returned.
    pending = PendingResults()
    assert make_learn(guard, pending)({}, served, "more", of="SGLang's") is None
    assert pending.scheduler is served
    assert (guard.gate, guard.vocab_size, guard.speculation.algorithm, guard.tokenizer) == (
        Gate.SCHEDULER,
        77,
        "EAGLE",
        tokenizer,
    )
