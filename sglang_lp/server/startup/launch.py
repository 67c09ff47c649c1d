"""Checks at start-up: no process without the guard, and the same policy in all of them.

Some ways to start SGLang make processes that never load plugins, or a front end that passes no
processor on; these ways are refused. Scheduler processes are started through a function of this
module, which checks, in the new process and before SGLang's own code runs there, that the guard is
in place. Schedulers started in another way are stopped by ``sglang_lp.server.startup.fail_closed``.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.errors import PolicyError
from sglang_lp.faults import show_interrupts
from sglang_lp.server.front.header import AnswerHeader
from sglang_lp.server.front.tokenizer import write_tokenizer
from sglang_lp.server.gate import metrics
from sglang_lp.server.gate.whole_answers import check_policy
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.foreign import begin
from sglang_lp.server.startup.front_app import extend
from sglang_lp.server.startup.installation import installed_guard, refuse
from sglang_lp.server.startup.start_block import describe_start
from sglang_lp.server.startup.workers import can_be_guarded, lead_to_guard
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard
    from sglang_lp.server.scheduler.pending import PendingResults


logger = logging.getLogger(__name__)


class Refused(NamedTuple):
    """A way to start a server that is refused.

    Attributes:
        way: What the operator wrote.
        why: Why a server started this way would not be guarded, or would drop processors silently.
        is_asked: Tells from SGLang's arguments whether the operator starts this way.
    """

    way: str
    why: str
    is_asked: Callable[[Any], bool]


def _asks_for_rust(_server_args: Any) -> bool:
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_RUST_SERVER.get())


_RUST = "SGLang's Rust front end drops custom logit processors without a word"

#: Every refused way; ``docs/deploying.md`` lists them with the supported ways. An encoder
#: (``--encoder-only``) samples nothing, so it needs no guard.
REFUSED = (
    Refused(
        "--tokenizer-worker-num above 1",
        "this SGLang loads no plugin in tokenizer workers",
        lambda server_args: server_args.tokenizer_worker_num > 1 and not can_be_guarded(),
    ),
    Refused(
        "--admin-api-key with --tokenizer-worker-num above 1",
        "SGLang checks no key in tokenizer workers, so the key would protect nothing",
        lambda server_args: server_args.tokenizer_worker_num > 1 and server_args.admin_api_key,
    ),
    Refused(
        "--use-ray",
        "SGLang loads no plugin in Ray's actors",
        lambda server_args: server_args.use_ray,
    ),
    Refused(
        "SGLANG_RUST_SERVER=1",
        _RUST,
        _asks_for_rust,
    ),
    Refused(
        "--smg-grpc-mode",
        "SMG's requests have no custom logit processor",
        lambda server_args: (
            (server_args.smg_grpc_mode or server_args.grpc_mode) and not server_args.encoder_only
        ),
    ),
    Refused(
        "--disaggregation-mode without --enable-custom-logit-processor",
        "a request with a processor would be refused here, and waited for by the other server",
        lambda server_args: (
            server_args.disaggregation_mode != "null"
            and not server_args.enable_custom_logit_processor
        ),
    ),
    Refused(
        "--pp-size above 1 with --speculative-algorithm and --enable-custom-logit-processor",
        "what processors do to drafts on the last rank does not reach the first one, which answers",
        lambda server_args: (
            server_args.pp_size > 1
            and server_args.speculative_algorithm is not None
            and server_args.enable_custom_logit_processor
        ),
    ),
    Refused(
        "--pp-size above 1 with --disaggregation-mode",
        "what processors do to the first token on the last rank does not reach the decode server",
        lambda server_args: server_args.pp_size > 1 and server_args.disaggregation_mode != "null",
    ),
    Refused(
        "SMG_SGLANG_ZMQ_HANDSHAKE (smg_grpc_servicer.sglang.headless)",
        "SMG's requests have no custom logit processor",
        lambda _server_args: "SMG_SGLANG_ZMQ_HANDSHAKE" in os.environ,
    ),
)


def check_launch(server_args: Any) -> None:
    """Refuse a way to start that ``REFUSED`` lists.

    A hook before SGLang's own check, which every launch makes after it has loaded plugins. A hook
    on ``launch_server`` would come too late for a program that calls it.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    decided = resolving_view(server_args)
    for refused in REFUSED:
        if refused.is_asked(decided):
            refuse(f"{refused.way}: {refused.why}")
    if decided.tokenizer_worker_num > 1:
        lead_to_guard()


def check_parsed(server_args: Any, *_args: Any, **_kwargs: Any) -> None:
    """Refuse such a way in a parsed command line, before anything is started."""
    check_launch(server_args)


def check_engine(cls: Any, *_args: Any, **_kwargs: Any) -> None:
    """Refuse an engine that starts Ray actors, whatever its arguments say."""
    if "ray" in cls.__module__.split("."):
        refuse(f"{cls.__module__}.{cls.__name__}: SGLang loads no plugin in Ray's actors")


class Launch:
    """Starts the processes of a server. Its public methods are hooks.

    Args:
        guard: The guard of this process.
        pending: Reads the results of this process's scheduler, if it has one.
    """

    def __init__(self, guard: Guard, pending: PendingResults) -> None:
        self._guard = guard
        self._pending = pending

    def start_schedulers(
        self,
        original: Any,
        cls: Any,
        server_args: Any,
        port_args: Any,
        run_scheduler_process_func: Callable[..., None],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Start the scheduler processes through :func:`run_guarded`."""
        installation.schedulers_are_guarded = True
        logger.info("%s", describe_start(self._guard, server_args))
        # A single rank may begin with a newer version of a file than its parent.
        ranks = server_args.tp_size * server_args.pp_size
        versions = self._guard.server.versions if ranks > 1 else None
        known = self._guard.fingerprint, versions
        run = functools.partial(run_guarded, run_scheduler_process_func, *known)
        return original(cls, server_args, port_args, run, *args, **kwargs)

    def learn_front(self, _result: None, manager: Any, *_args: Any, **_kwargs: Any) -> None:
        """Learn about the server in the HTTP process, once its tokenizer is loaded.

        The tables that texts need are built before the server is ready, so no request waits.
        """
        self._learn(Gate.ADMISSION, manager)

    def begin_front(self, _result: None, manager: Any, *_args: Any, **_kwargs: Any) -> None:
        """Start metrics and middleware in the HTTP process, once its ``TokenizerManager`` exists.

        A server that runs takes no more middleware.
        """
        self._count(manager)
        front = sys.modules.get("sglang.srt.entrypoints.http_server")
        app = getattr(front, "app", None)
        if app is None:
            return  # an Engine without HTTP
        write_tokenizer(self._guard.server.tokenizer)  # before any request can wait for it
        if not any(one.cls is AnswerHeader for one in app.user_middleware):
            extend(app, self._guard)

    def learn_scheduler(self, _info: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        """Learn about the server in a scheduler that is ready, and make adapted classes."""
        if getattr(scheduler, "rust_server", None) is not None:
            refuse(f"this scheduler runs a Rust server: {_RUST}")
        self._learn(Gate.SCHEDULER, scheduler)
        self._pending.scheduler = scheduler
        # Only one of the ranks that serve the same requests counts them: a rank of the last stage,
        # which runs processors.
        is_enabled = scheduler.metrics_reporter.current_scheduler_metrics_enabled
        if is_enabled and scheduler.pp_group.is_last_rank:
            self._count(scheduler)

    def _count(self, process: Any) -> None:
        guard = self._guard
        catalogues = guard.server.catalogues.now.values()
        metrics.start(process.server_args, guard.fingerprint, guard.processors, catalogues)

    def _learn(self, gate: Gate, process: Any) -> None:
        try:
            self._guard.learn(gate, process)
            check_policy(self._guard)
            if gate is Gate.SCHEDULER:
                begin(self._guard.verifier, process)
        except PolicyError as error:
            installation.end(error)


def run_guarded(
    run: Callable[..., None],
    fingerprint: str,
    versions: Mapping[str, str] | None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Run a scheduler process, provided that the guard is in place in it.

    Args:
        run: SGLang's function.
        fingerprint: Fingerprint of the policy in the parent process.
        versions: Versions of the files behind the policy in the parent process, by name; ``None``
            if this process may have other versions.
        *args: For ``run``.
        **kwargs: For ``run``.

    Raises:
        SystemExit: The guard is missing here, or has another policy or version of a file.
    """
    from sglang.srt.plugins import load_plugins

    load_plugins()
    guard = installed_guard()
    if guard is None:
        refuse("SGLang did not load the plugin in a scheduler process")
    elif guard.fingerprint != fingerprint:
        refuse("a scheduler process has another policy than the process that started it")
    elif versions is not None and guard.server.versions != versions:
        refuse(
            "the file of a catalogue or a watermark was replaced while the ranks started; start "
            "them again"
        )
    installation.schedulers_are_guarded = True
    show_interrupts()
    run(*args, **kwargs)
