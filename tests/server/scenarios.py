"""Ways in which SGLang's plugin loading fails open, each played in a process of its own.

Run as a script: imports SGLang once, forks for each scenario, and prints as JSON how each process
ended. A scenario that goes on to "serve" exits with 0; the guard ends it with 78, and
``sglang-lp serve`` with 2. The numbers are those of the constructions, after the ones in
``support/constructions.py``.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

PROCESSOR = "sglang.srt.sampling.custom_logit_processor.CustomLogitProcessor"


def load() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()


def nothing_is_wrong() -> None:
    load()
    from sglang_lp.server.process import installed_guard

    if installed_guard() is None:
        raise SystemExit("the guard is not in place")


# 54: what the loader cannot import it skips.
def plugin_cannot_be_imported() -> None:
    sys.modules["sglang_lp.server.hooks"] = None  # type: ignore[assignment]
    load()


# 55: what a plugin raises is logged.
def plugin_raises() -> None:
    from sglang_lp.server import hooks

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


def policy_file_is_missing() -> None:
    os.environ["SGLANG_LP_POLICY"] = "there/is/no/such/policy.toml"
    load()


# 60: the last plugin that replaces a function wins.
def another_plugin_replaces_the_sink() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_lp.server import hooks

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
    from sglang_lp.server.launch import run_guarded

    run_guarded(lambda: None, "fingerprint of the parent's policy")


def scheduler_has_another_policy() -> None:
    from sglang_lp.server.launch import run_guarded

    run_guarded(lambda: None, "fingerprint of another policy")


def _check(**arguments: Any) -> None:
    load()
    from sglang.srt.entrypoints.engine import Engine

    Engine._launch_subprocesses(types.SimpleNamespace(**arguments))


# 59: processes that never load plugins.
def several_tokenizer_workers() -> None:
    _check(tokenizer_worker_num=2, use_ray=False)


def ray_actors() -> None:
    _check(tokenizer_worker_num=1, use_ray=True)


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
        policy_file_is_missing,
        another_plugin_replaces_the_sink,
        another_plugin_replaces_the_sampler_by_assignment,
        scheduler_did_not_load_the_plugin,
        scheduler_has_another_policy,
        several_tokenizer_workers,
        ray_actors,
        serve,
        serve_where_the_plugin_is_not_installed,
        serve_where_the_plugin_does_not_load,
        serve_on_a_platform_that_leaves_the_plugin_out,
        serve_after_plugins_were_loaded_without_this_one,
    )
}


def play(scenario: Callable[[], None]) -> dict[str, Any]:
    """Run one scenario in a fork; return its exit code and what it wrote to standard error."""
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
    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.scheduler
    import sglang.srt.managers.tp_worker  # noqa: F401 - what the hooks resolve, once for all forks

    sys.stdout.write(json.dumps({name: play(scenario) for name, scenario in SCENARIOS.items()}))


if __name__ == "__main__":
    main()
