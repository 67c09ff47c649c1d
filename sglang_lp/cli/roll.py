"""``sglang-lp roll``: restart the workers of a router, one at a time, with no failed request."""

from __future__ import annotations

import shlex
import subprocess
import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import msgspec

from sglang_lp.cli import http, server_checks
from sglang_lp.cli.terminal import progress, say
from sglang_lp.errors import SglangLpError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_OK, _ACCEPTED = 200, 202
#: Seconds between two looks at a worker.
_PAUSE = 0.5
#: Looks at a worker that must all find it idle: a request may still be on its way to it.
_IDLE_LOOKS = 3


#: Only a host and a port, because the URL becomes part of a command.
_WORKER_URL = r"^https?://([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(:[0-9]+)?/?\Z"


class _Worker(msgspec.Struct):
    """A worker, by the fields of a router's list that are read here."""

    url: Annotated[str, msgspec.Meta(pattern=_WORKER_URL)]
    id: str
    is_healthy: bool


class _Listed(msgspec.Struct):
    workers: list[_Worker]


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "roll",
        help="restart the workers behind sglang-router, one at a time",
        description="For each worker of a router: take it out, wait until it has answered its "
        "requests, run a command that restarts it, check that it is guarded, and put it back. Ends "
        "at the first failure, with the other workers in service. OPENAI_API_KEY is sent, if it is "
        "set, to the host of --router and to those of --key-host.",
    )
    parser.add_argument("--router", metavar="URL", required=True, help="URL of the router")
    parser.add_argument(
        "--restart",
        metavar="COMMAND",
        required=True,
        help="command that restarts one worker, and returns once the old process has ended; {url}, "
        "{host} and {port} in it are replaced by the worker's",
    )
    parser.add_argument(
        "--key-host",
        metavar="HOST",
        action="append",
        default=[],
        help="a worker's host to which OPENAI_API_KEY may be sent; can be given several times",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=900.0,
        help="longest wait for a worker to finish, and to come back (default: 900)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    router = http.base_of(arguments.router, "--router")
    command = _parse(arguments.restart)
    key_hosts = {urlsplit(router).hostname, *(host.lower() for host in arguments.key_host)}
    found = _workers(router)
    healthy = sum(worker.is_healthy for worker in found.values())
    if healthy < 2:  # noqa: PLR2004 - one serves while the other restarts
        raise SglangLpError(
            f"--router: expected two healthy workers or more, got {healthy}: requests would fail "
            "while the only one restarts; add one at the router"
        )
    for place, worker in enumerate(found.values(), 1):
        say(f"{worker.url} ({place} of {len(found)})")
        try:
            _roll(
                router,
                worker,
                command,
                arguments.timeout,
                key=urlsplit(worker.url).hostname in key_hosts,
            )
        except SglangLpError as error:
            say(f"  FAILED: {error}")
            return 1
    return 0


def _parse(restart: str) -> list[str]:
    try:
        words = shlex.split(restart)
    except ValueError as error:
        raise UsageError(f"--restart: expected a command, got {restart!r}: {error}") from error
    if not words:
        raise UsageError("--restart: expected a command, got nothing")
    return words


def _roll(router: str, worker: _Worker, command: list[str], seconds: float, *, key: bool) -> None:
    """Restart one worker.

    Raises:
        SglangLpError: Something went wrong; the worker may be out of service.
    """
    url = worker.url.rstrip("/")
    answer = http.request("DELETE", router, f"/workers/{quote(worker.id, safe='')}")
    if answer.status not in {_OK, _ACCEPTED}:
        raise SglangLpError(f"the router does not remove the worker: {http.told(answer)}")
    _wait(lambda: worker.url not in _workers(router), seconds, "the router still lists the worker")
    say("  out of the router")
    for _ in range(_IDLE_LOOKS):
        _wait(lambda: _is_idle(url, key=key), seconds, "the worker still has requests")
        time.sleep(_PAUSE)
    say("  idle")
    _restart(url, command)
    _wait(lambda: _is_up(url, key=key), seconds, "the worker does not answer /health")
    say(f"  restarted; {server_checks.check_guard(url, key=key)}")
    answer = http.request("POST", router, "/workers", {"url": worker.url})
    if answer.status not in {_OK, _ACCEPTED}:
        raise SglangLpError(f"the router does not add the worker: {http.told(answer)}")
    _wait(lambda: _is_healthy(router, worker.url), seconds, "the router calls the worker unhealthy")
    say("  back in the router")


def _workers(router: str) -> dict[str, _Worker]:
    answer = http.request("GET", router, "/workers")
    try:
        listed = msgspec.convert(answer.body, _Listed)
    except msgspec.ValidationError as error:
        raise SglangLpError(
            "--router: expected sglang-router, whose /workers lists its workers and where they "
            f"listen for HTTP, got HTTP {answer.status} from {router}: {error}"
        ) from None
    return {worker.url: worker for worker in listed.workers}


def _is_healthy(router: str, url: str) -> bool:
    worker = _workers(router).get(url)
    return worker is not None and worker.is_healthy


def _is_idle(url: str, *, key: bool) -> bool:
    answer = http.request("GET", url, "/v1/loads?include=core", key=key)
    try:
        return all(
            load["num_running_reqs"] + load["num_waiting_reqs"] == 0
            for load in answer.body["loads"]
        )
    except (KeyError, TypeError):
        raise SglangLpError(
            f"expected its load from {url}/v1/loads, got {http.told(answer)}"
        ) from None


def _is_up(url: str, *, key: bool) -> bool:
    try:
        return http.request("GET", url, "/health", key=key).status == _OK
    except SglangLpError:
        return False


def _restart(url: str, command: list[str]) -> None:
    at = urlsplit(url)
    named = {"{url}": url, "{host}": at.hostname or "", "{port}": str(at.port or "")}
    words = []
    for word in command:
        is_script = any(map(str.isspace, word))  # as in: sh -c "restart {host}"
        for name, value in named.items():
            word = word.replace(name, shlex.quote(value) if is_script else value)  # noqa: PLW2901
        words.append(word)
    try:
        code = subprocess.run(words, check=False).returncode  # noqa: S603 - the operator's own
    except OSError as error:
        raise SglangLpError(f"--restart: {words[0]} does not run: {error}") from error
    if code:
        raise SglangLpError(f"--restart: {shlex.join(words)} ended with exit code {code}")


def _wait(done: Callable[[], bool], seconds: float, why: str) -> None:
    deadline = time.monotonic() + seconds
    with progress(f"  waiting: {why}"):
        while not done():
            if time.monotonic() > deadline:
                raise SglangLpError(f"{why} after {seconds:.0f} s")
            time.sleep(_PAUSE)
