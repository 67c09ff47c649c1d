"""Checks at start-up: no process without the guard, and one policy in all of them."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from sglang.srt.arg_groups import overrides

from sglang_lp.faults import interrupt
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.startup import installation, launch
from sglang_lp.server.startup.launch import (
    REFUSED,
    Launch,
    check_engine,
    check_launch,
    check_parsed,
    run_guarded,
)
from sglang_lp.trust import Gate

ENGINE = SimpleNamespace(__module__="sglang.srt.entrypoints.engine", __name__="Engine")


@pytest.fixture
def arguments():
    """Return SGLang's own arguments, not resolved yet."""
    from sglang.srt.server_args import ServerArgs

    return lambda **given: ServerArgs(model_path="none", **given)


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    monkeypatch.delenv("SGLANG_RUST_SERVER", raising=False)
    monkeypatch.delenv("SMG_SGLANG_ZMQ_HANDSHAKE", raising=False)
    monkeypatch.setattr(installation, "schedulers_are_guarded", False)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"grpc_port": 1},
        {"skip_tokenizer_init": True},
        {"encoder_only": True, "grpc_mode": True},
        {"nnodes": 2, "node_rank": 1},
        {"disaggregation_mode": "prefill", "enable_custom_logit_processor": True},
        {"disaggregation_mode": "decode", "enable_custom_logit_processor": True},
    ],
)
def test_a_server_whose_processes_are_all_guarded_starts(arguments, given):
    # A value would replace SGLang's arguments.
    assert check_launch(arguments(**given)) is None
    assert check_parsed(arguments(**given), ["--its", "command line"]) is None


@pytest.mark.parametrize("module", ["sglang.srt.entrypoints.engine", "my.array_tools"])
def test_an_engine_without_actors_starts(module):
    engine = SimpleNamespace(__module__=module, __name__="Engine")

    assert check_engine(engine, "server args", of="SGLang's") is None


ASKED = {
    "--tokenizer-worker-num above 1": ({"tokenizer_worker_num": 2}, {}),
    "--admin-api-key with --tokenizer-worker-num above 1": (
        {"tokenizer_worker_num": 2, "admin_api_key": "key"},
        {},
    ),
    "--use-ray": ({"use_ray": True}, {}),
    "SGLANG_RUST_SERVER=1": ({}, {"SGLANG_RUST_SERVER": "1"}),
    "--smg-grpc-mode": ({"grpc_mode": True}, {}),
    "--disaggregation-mode without --enable-custom-logit-processor": (
        {"disaggregation_mode": "prefill"},
        {},
    ),
    "--pp-size above 1 with --speculative-algorithm and --enable-custom-logit-processor": (
        {"pp_size": 2, "speculative_algorithm": "EAGLE", "enable_custom_logit_processor": True},
        {},
    ),
    "--pp-size above 1 with --disaggregation-mode": (
        {
            "pp_size": 2,
            "disaggregation_mode": "decode",
            "enable_custom_logit_processor": True,
        },
        {},
    ),
    "SMG_SGLANG_ZMQ_HANDSHAKE (smg_grpc_servicer.sglang.headless)": (
        {},
        {"SMG_SGLANG_ZMQ_HANDSHAKE": "tcp://127.0.0.1:1"},
    ),
}


@pytest.mark.parametrize("check", [check_launch, check_parsed])
@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.way)
def test_a_way_to_start_that_is_refused_is_named(monkeypatch, capfd, arguments, refused, check):
    monkeypatch.setattr(launch, "can_be_guarded", lambda: "key" in refused.way)
    given, variables = ASKED[refused.way]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        check(arguments(**given))

    assert end.value.code == 78
    assert capfd.readouterr().err.endswith(f": {refused.way}: {refused.why}\n")


#: Refused in part: the documents have them as served, with a note.
IN_PART = {
    "--tokenizer-worker-num above 1",
    "--admin-api-key with --tokenizer-worker-num above 1",
    "--disaggregation-mode without --enable-custom-logit-processor",
    "--pp-size above 1 with --speculative-algorithm and --enable-custom-logit-processor",
    "--pp-size above 1 with --disaggregation-mode",
}


def test_the_documents_have_every_way_that_is_refused_and_why():
    page = (Path(__file__).parents[3] / "docs" / "deploying.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| refused \| ([^|]+) \|$", page, re.MULTILINE)

    expected = {refused.way: refused.why for refused in REFUSED if refused.way not in IN_PART}
    assert len(rows) == len(expected)
    for way, why in expected.items():
        option = way.partition(" ")[0]
        assert [said for started, said in rows if f"`{option}`" in started] == [why]


def test_what_sglang_decided_counts_and_not_only_what_was_given(monkeypatch, arguments):
    monkeypatch.setattr(
        overrides,
        "resolving_view",
        lambda _server_args: SimpleNamespace(tokenizer_worker_num=2),
    )
    monkeypatch.setattr(launch, "can_be_guarded", lambda: False)
    with pytest.raises(SystemExit):
        check_launch(arguments())


def test_an_engine_for_ray_does_not_start_whatever_its_arguments(capfd):
    engine = SimpleNamespace(__module__="sglang.srt.ray.engine", __name__="RayEngine")
    with pytest.raises(SystemExit) as end:
        check_engine(engine, "server args")

    assert end.value.code == 78
    assert capfd.readouterr().err.endswith(
        ": sglang.srt.ray.engine.RayEngine: SGLang loads no plugin in Ray's actors\n"
    )


# A scheduler process


@pytest.fixture
def scheduler(monkeypatch, guard):
    """Play a scheduler process; returns what became of it with a guard, or without."""
    from sglang.srt import plugins

    done = []
    monkeypatch.setattr(plugins, "load_plugins", lambda: done.append("plugins"))

    def scheduler(here, fingerprint=guard.fingerprint, versions=None):
        monkeypatch.setattr(launch, "installed_guard", lambda: here)

        def run(*args, **kwargs):
            done.append((args, kwargs))

        run_guarded(run, fingerprint, versions, 1, two=2)
        return done

    return scheduler


def test_a_scheduler_loads_its_plugins_and_runs_if_the_guard_is_there(scheduler, guard):
    assert scheduler(guard) == ["plugins", ((1,), {"two": 2})]
    assert installation.schedulers_are_guarded


def test_in_a_scheduler_an_interrupt_is_told_from_what_a_processor_raises(scheduler, guard):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        scheduler(guard)
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGINT, before)


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
    assert not installation.schedulers_are_guarded


def test_the_ranks_of_a_server_begin_with_the_same_version_of_a_catalogue(capfd, scheduler, guard):
    scheduler(guard, versions={})
    with pytest.raises(SystemExit):
        scheduler(guard, versions={"items": "0123456789abcdef"})

    assert (
        "the file of a catalogue or a watermark was replaced while the ranks started"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(("tp", "pp", "versions"), [(1, 1, None), (2, 1, {}), (1, 2, {})])
def test_schedulers_are_started_through_that_check_in_the_new_process(
    guard, monkeypatch, tp, pp, versions
):
    done = []

    def guarded(*args, **kwargs):
        done.append((args, kwargs))

    def sglangs(cls, server_args, port_args, run, *args, **kwargs):
        run("scheduler's", own="arguments")
        return cls, server_args, port_args, args, kwargs

    def run():
        pass

    monkeypatch.setattr(launch, "run_guarded", guarded)
    around = Launch(guard, PendingResults()).start_schedulers
    server_args = SimpleNamespace(
        tp_size=tp, pp_size=pp, admin_api_key="key", enable_custom_logit_processor=True
    )
    result = around(sglangs, ENGINE, server_args, "port", run, "more", placement_group="group")

    assert result == (ENGINE, server_args, "port", ("more",), {"placement_group": "group"})
    assert done == [((run, guard.fingerprint, versions, "scheduler's"), {"own": "arguments"})]
    assert installation.schedulers_are_guarded


def test_a_scheduler_that_runs_a_rust_server_does_not_serve(guard, capfd):
    served = SimpleNamespace(rust_server=object())
    with pytest.raises(SystemExit) as end:
        Launch(guard, PendingResults()).learn_scheduler({}, served)

    assert end.value.code == 78
    assert "runs a Rust server: SGLang's Rust front end drops" in capfd.readouterr().err


def test_sglang_itself_refuses_its_watermark_beside_processors():
    hook = pytest.importorskip("sglang.srt.arg_groups.validation_hook")
    check = getattr(hook, "check_watermark_server_args", None)
    if check is None:
        pytest.skip("this SGLang has no watermark")
    given = {"enable_watermark": True, "device": "cuda", "watermark_config": None}
    given |= dict.fromkeys(("watermark_key", "watermark_key_b"))
    given |= {"watermark_context_window": 4, "watermark_max_probability": 1.0}
    given |= {"watermark_mixing_probability": 0.5}
    given |= dict.fromkeys(("watermark_default_enabled", "watermark_enforce_all"), False)
    with pytest.raises(ValueError, match="incompatible with --enable-custom-logit-processor"):
        check(SimpleNamespace(**given, enable_custom_logit_processor=True))


@pytest.mark.parametrize("tokenizer", [None, "its tokenizer"])
def test_in_the_scheduler_it_becomes_known_what_is_served(guard, tokenizer):
    served = SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=77, hf_eos_token_id={2}),
        server_args=SimpleNamespace(speculative_algorithm="eagle"),
        metrics_reporter=SimpleNamespace(current_scheduler_metrics_enabled=True),
        pp_group=SimpleNamespace(is_last_rank=True),
    )
    if tokenizer:
        served.tokenizer = tokenizer
    # A value would replace what SGLang returned.
    pending = PendingResults()
    assert Launch(guard, pending).learn_scheduler({}, served, "more", of="SGLang's") is None
    assert pending.scheduler is served
    assert (
        guard.gate,
        guard.server.vocab_size,
        guard.server.speculation.algorithm,
        guard.server.tokenizer,
    ) == (
        Gate.SCHEDULER,
        77,
        "EAGLE",
        tokenizer,
    )
