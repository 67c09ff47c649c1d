"""Ways in which SGLang's plugin loading fails open, each played in a process of its own.

Run as a script: imports SGLang once, forks for each scenario, and prints as JSON how each process
ended. A scenario that goes on to "serve" exits with 0; the guard ends it with 78, and
``sglang-lp serve`` with 2. The numbers are those of the constructions, after the ones in
``support/constructions.py``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.hooking import search_once

PROCESSOR = "sglang.srt.sampling.custom_logit_processor.CustomLogitProcessor"


def load() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()


def nothing_is_wrong() -> None:
    load()
    from sglang_lp.server.startup.installation import installed_guard

    if installed_guard() is None:
        raise SystemExit("the guard is not in place")


# 54: what the loader cannot import it skips.
def plugin_cannot_be_imported() -> None:
    sys.modules["sglang_lp.server.startup.hooks"] = None  # type: ignore[assignment]
    load()


# 55: what a plugin raises is logged.
def plugin_raises() -> None:
    from sglang_lp.server.startup import hooks

    hooks.put_in_place = lambda: 1 / 0  # type: ignore[assignment, return-value]
    load()


# 56: so is a hook that cannot be applied.
def sglang_renamed_a_function() -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    del TokenizerManager._create_tokenized_object
    load()


def sglang_is_too_new() -> None:
    from sglang_lp.server import versions

    versions.version = lambda _name: "0.5.24"  # type: ignore[assignment]
    load()


def nothing_is_wrong_with_an_untested_sglang_that_the_operator_takes() -> None:
    from sglang_lp.server import versions

    os.environ[versions.ALLOW_UNTESTED] = "1"
    versions.version = lambda _name: "0.5.24"  # type: ignore[assignment]
    nothing_is_wrong()


def policy_file_is_missing() -> None:
    os.environ["SGLANG_LP_POLICY"] = "there/is/no/such/policy.toml"
    load()


# 60: the last plugin that replaces a function wins.
def another_plugin_replaces_the_sink() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_lp.server.startup import hooks

    original = hooks.put_in_place

    def then_another() -> None:
        original()
        HookRegistry.register(PROCESSOR + ".from_str", lambda _cls, _text: None, HookType.REPLACE)

    hooks.put_in_place = then_another
    load()


def another_plugin_replaces_the_sampler_by_assignment() -> None:
    from sglang.srt.layers import sampler
    from sglang.srt.plugins.hook_registry import HookRegistry

    original = HookRegistry.apply_hooks

    def then_assign() -> None:
        original()
        sampler.apply_custom_logit_processor = lambda *_args: None

    HookRegistry.apply_hooks = then_assign
    load()


# 57: SGLang was told to skip the plugin.
def scheduler_did_not_load_the_plugin() -> None:
    os.environ["SGLANG_PLUGINS"] = "some_other_plugin"
    from sglang_lp.server.startup.launch import run_guarded

    run_guarded(lambda: None, "fingerprint of the parent's policy", None)


def scheduler_has_another_policy() -> None:
    from sglang_lp.server.startup.launch import run_guarded

    run_guarded(lambda: None, "fingerprint of another policy", None)


# A program that goes on after a SystemExit, for which load_plugins does nothing any more.
def _load_and_go_on() -> None:
    with suppress(SystemExit):
        load()


def front_end_after_a_swallowed_exit() -> None:
    policy_file = "there/is/no/such/policy.toml"
    os.environ["SGLANG_LP_POLICY"] = policy_file
    _load_and_go_on()
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    TokenizerManager(_arguments(), None)


def scheduler_after_a_swallowed_exit() -> None:
    sys.modules["sglang_lp.server.startup.hooks"] = None  # type: ignore[assignment]
    _load_and_go_on()
    from sglang.srt.managers.scheduler import Scheduler

    Scheduler(_arguments(), None)


def front_end_after_a_swallowed_exit_at_the_last_check() -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    create = TokenizerManager._create_tokenized_object
    del TokenizerManager._create_tokenized_object
    _load_and_go_on()
    TokenizerManager._create_tokenized_object = create
    TokenizerManager(_arguments(), None)


def launch_server_after_a_swallowed_exit() -> None:
    os.environ["SGLANG_LP_POLICY"] = "there/is/no/such/policy.toml"
    _load_and_go_on()
    _launch_server()


def plugin_is_loaded_again_after_a_swallowed_exit() -> None:
    from sglang.srt import plugins
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    os.environ["SGLANG_LP_POLICY"] = "there/is/no/such/policy.toml"
    _load_and_go_on()
    plugins._plugins_loaded = False
    _load_and_go_on()
    TokenizerManager(_arguments(), None)


def nothing_is_wrong_with_a_plugin_that_is_loaded_twice() -> None:
    from sglang.srt import plugins

    load()
    plugins._plugins_loaded = False
    nothing_is_wrong()


def _arguments(**arguments: Any) -> Any:
    """Return SGLang's own arguments of a server that could run here, but for its weights."""
    from sglang.srt.server_args import ServerArgs

    model = Path(tempfile.mkdtemp())
    (model / "config.json").write_text(
        json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})
    )
    return ServerArgs(
        model_path=str(model),
        device="cpu",
        attention_backend="torch_native",
        grammar_backend="none",
        skip_tokenizer_init=True,
        **arguments,
    )


def _launch_server(**arguments: Any) -> None:
    """Do what a program does that starts a server by itself: no plugin was loaded before."""
    from sglang.srt.entrypoints import http_server

    http_server.launch_server(_arguments(**arguments))


def _command_line(*arguments: str) -> None:
    """Run ``python -m sglang.launch_server``."""
    sys.argv = ["sglang.launch_server", "--model-path", "no/such/model", *arguments]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


# 59: processes that never load plugins.
def tokenizer_workers_with_an_app_of_their_own() -> None:
    os.environ["SGLANG_HTTP_SERVER_APP_PATH"] = "my.server:app"
    _command_line("--tokenizer-worker-num", "2")


def tokenizer_worker_without_the_plugin() -> None:
    os.environ["SGLANG_PLUGINS"] = "some_other_plugin"
    _import_app()


def tokenizer_worker_with_another_policy() -> None:
    os.environ["SGLANG_LP_FINGERPRINT"] = "fingerprint of another policy"
    _import_app()


def _import_app() -> None:
    """Do what a tokenizer worker of SGLang does."""
    from uvicorn.importer import import_from_string

    import_from_string("sglang_lp.server.startup.workers:app")


def engine_that_other_processes_would_join() -> None:
    load()
    from sglang.srt.entrypoints.engine import write_data_for_multi_tokenizer

    write_data_for_multi_tokenizer(None, None, None)


def ray_without_ray() -> None:
    _command_line("--use-ray")


def ray_of_a_program() -> None:
    _launch_server(use_ray=True)


def _import_ray() -> Any:
    """Import SGLang's engine for Ray, which is not installed here."""
    ray = types.ModuleType("ray")
    ray.remote = lambda actor: actor  # type: ignore[attr-defined]
    strategies = types.ModuleType("ray.util.scheduling_strategies")
    strategies.PlacementGroupSchedulingStrategy = None  # type: ignore[attr-defined]
    placement = types.ModuleType("ray.util.placement_group")
    placement.PlacementGroup = None  # type: ignore[attr-defined]
    sys.modules.update(
        {
            "ray": ray,
            "ray.util": types.ModuleType("ray.util"),
            "ray.util.scheduling_strategies": strategies,
            "ray.util.placement_group": placement,
        }
    )
    from sglang.srt.ray.engine import RayEngine

    return RayEngine


def ray_engine() -> None:
    _import_ray()(**_named(_arguments()))


def _named(server_args: Any) -> dict[str, Any]:
    names = ("model_path", "device", "attention_backend", "grammar_backend", "skip_tokenizer_init")
    return {name: getattr(server_args, name) for name in names}


def ray_launch_server_of_a_program() -> None:
    engine = _import_ray()
    from sglang.srt.entrypoints.engine import SchedulerInitResult
    from sglang.srt.ray import http_server

    # Its actors are started, and the process for text.
    started = SchedulerInitResult(scheduler_infos=[{}])
    engine._launch_scheduler_processes = classmethod(lambda *_args, **_kwargs: (started, None))
    engine._launch_detokenizer_subprocesses = classmethod(lambda _cls, **_kwargs: ([], []))
    http_server.launch_server(_arguments())


# Front ends without a TokenizerManager, which pass no processor on.
def rust_server() -> None:
    os.environ["SGLANG_RUST_SERVER"] = "1"
    _command_line()


def rust_server_of_a_program() -> None:
    os.environ["SGLANG_RUST_SERVER"] = "1"
    _launch_server()


def smg_grpc() -> None:
    _command_line("--smg-grpc-mode")


def smg_grpc_by_its_old_name() -> None:
    _command_line("--grpc-mode")


def smg_headless() -> None:
    from smg_grpc_servicer.sglang import headless

    headless.run(_arguments(), "tcp://127.0.0.1:1")


def scheduler_that_a_program_starts() -> None:
    from sglang.srt.managers.scheduler import run_scheduler_process
    from sglang.srt.server_args import PortArgs

    arguments = _arguments()
    arguments.resolve_once()
    run_scheduler_process(arguments, PortArgs.init_new(arguments), 0, 0, 0, None, None)


def serve() -> None:
    """Run ``sglang-lp serve`` as far as SGLang's own server."""
    from sglang import launch_server
    from sglang.srt import server_args

    from sglang_lp.cli import main

    launch_server.run_server = lambda _arguments: None
    server_args.prepare_server_args = lambda arguments: arguments
    raise SystemExit(main(["serve", "--", "--model-path", "any"]))


def serve_where_the_plugin_is_not_installed() -> None:
    from sglang.srt import plugins

    plugins.entry_points = lambda **_kwargs: []
    serve()


# 54, where it is the whole package that cannot be imported.
def serve_where_the_plugin_does_not_load() -> None:
    from importlib.metadata import EntryPoint

    def broken(_self: EntryPoint) -> None:
        raise ImportError("sglang_lp is broken")

    EntryPoint.load = broken  # type: ignore[method-assign]
    serve()


# 57, by SGLANG_PLATFORM.
def serve_on_a_platform_that_leaves_the_plugin_out() -> None:
    from sglang.srt import plugins

    plugins._get_excluded_dists = lambda: {"sglang-lp"}
    serve()


# 58: the loader never tries again.
def serve_after_plugins_were_loaded_without_this_one() -> None:
    from sglang.srt import plugins

    plugins._plugins_loaded = True
    serve()


SCENARIOS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        nothing_is_wrong,
        plugin_cannot_be_imported,
        plugin_raises,
        sglang_renamed_a_function,
        sglang_is_too_new,
        nothing_is_wrong_with_an_untested_sglang_that_the_operator_takes,
        policy_file_is_missing,
        another_plugin_replaces_the_sink,
        another_plugin_replaces_the_sampler_by_assignment,
        scheduler_did_not_load_the_plugin,
        scheduler_has_another_policy,
        front_end_after_a_swallowed_exit,
        scheduler_after_a_swallowed_exit,
        front_end_after_a_swallowed_exit_at_the_last_check,
        launch_server_after_a_swallowed_exit,
        plugin_is_loaded_again_after_a_swallowed_exit,
        nothing_is_wrong_with_a_plugin_that_is_loaded_twice,
        tokenizer_workers_with_an_app_of_their_own,
        tokenizer_worker_without_the_plugin,
        tokenizer_worker_with_another_policy,
        engine_that_other_processes_would_join,
        ray_without_ray,
        ray_of_a_program,
        ray_engine,
        ray_launch_server_of_a_program,
        rust_server,
        rust_server_of_a_program,
        smg_grpc,
        smg_grpc_by_its_old_name,
        smg_headless,
        scheduler_that_a_program_starts,
        serve,
        serve_where_the_plugin_is_not_installed,
        serve_where_the_plugin_does_not_load,
        serve_on_a_platform_that_leaves_the_plugin_out,
        serve_after_plugins_were_loaded_without_this_one,
    )
}


def play(scenario: Callable[[], None]) -> dict[str, Any]:
    """Run one scenario in a fork; return its exit code and standard error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 2)
        code = 0
        try:
            scenario()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException as error:  # noqa: BLE001 - reported as another way to end
            os.write(2, repr(error).encode())
            code = 1
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return {"exit": os.waitstatus_to_exitcode(status), "said": said[-4000:]}


def main() -> None:
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.scheduler
    import sglang.srt.managers.tp_worker  # noqa: F401 - what the hooks resolve, once for all forks

    search_once()
    sys.stdout.write(json.dumps({name: play(scenario) for name, scenario in SCENARIOS.items()}))


if __name__ == "__main__":
    main()
