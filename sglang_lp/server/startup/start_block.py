"""The first log message of a guarded server: its guard, its policy and its hooks."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sglang_lp import builtins
from sglang_lp.server.startup import installation

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

_BUILTINS = builtins.__name__


def describe_start(guard: Guard, server_args: Any) -> str:
    """Return the guard of a server, its policy and the state of its hooks, as one log message.

    Args:
        guard: The guard of the process that starts the schedulers.
        server_args: SGLang's arguments.
    """
    return "\n    ".join([*_lines(guard), *_off(server_args), *_open_routes(server_args)])


def _lines(guard: Guard) -> Iterator[str]:
    policy = guard.policy
    yield f"sglang-lp {version('sglang-lp')} guards this server, SGLang {version('sglang')}"
    yield f"policy: {policy.source}, fingerprint {guard.fingerprint}"
    own = [one.name for one in guard.verifier.allowed if one.processor.__module__ != _BUILTINS]
    kinds = [f"SGLang's own processors: {policy.stock.value}", *own]
    kinds += [f"{len(policy.pin)} pinned"] if policy.pin else []
    yield f"allowed: {', '.join([*(['built-ins'] if policy.builtins else []), *kinds])}"
    if policy.profiles:
        yield f"profiles: {', '.join(policy.profiles)}"
    if policy.defaults is not None:
        yield f"by default: {policy.defaults.processor}"
    if policy.always:
        yield f"for every request: {', '.join(chosen.processor for chosen in policy.always)}"
    if policy.ceilings:
        limits = [
            f"{name} at most {one.at_most} ({one.above.value})"
            for name, one in policy.ceilings.items()
        ]
        yield f"ceilings: {', '.join(limits)}"
    if policy.levels:
        yield f"effort: {', '.join(f'{name} {budget}' for name, budget in policy.levels.items())}"
    states = [*installation.status().values()]
    yield f"hooks: {states.count('live')} of {len(states)} live"


def _off(server_args: Any) -> Iterator[str]:
    """Yield a warning if this server refuses every request that names a processor."""
    if not server_args.enable_custom_logit_processor:
        yield (
            "PROCESSORS ARE OFF, and requests that name one are refused: add "
            "--enable-custom-logit-processor"
        )


def _open_routes(server_args: Any) -> Iterator[str]:
    """Yield a warning if clients may ask what SGLang leaves open without an administrator's key."""
    if server_args.admin_api_key:
        return
    # SGLang checks no key in tokenizer workers, where it refuses --api-key itself.
    close = (
        "close them with a proxy"
        if server_args.tokenizer_worker_num > 1
        else "start with --admin-api-key to close them"
    )
    yield (
        "open to every client: /release_memory_occupation, /pause_generation and SGLang's other "
        f"administrators' routes (docs/routes.md); {close}"
    )
