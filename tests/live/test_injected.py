"""No function of the toolkit that raises in a running server makes a success wrong.

The test records which functions a server calls, then makes each function raise once, in turn.
Further kinds of servers repeat only the functions in which they differ. A neighbour without a
processor gets its answer, unless the server ends. Only an exception that passes a hook of ``ENDS``
ends the server, and the log names the hook. The short form makes a few functions raise, on servers
that other tests share.
"""

from __future__ import annotations

import operator
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from sglang_lp import builtins
from sglang_lp.server.versions import has_beam_search
from support.models import draft_models
from support.models.tiny_model import EOS
from support.plugins import PROBES
from support.plugins.injecting import Faults, Injected
from support.processors.eager import CHAIN, CHOICE, START, THINKING
from support.processors.recording import Recorder
from support.servers.asking import body
from support.servers.configurations import POLICY, SERVERS, on_servers
from support.servers.server import Reply, Server, launch
from support.settings import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(7200)]

GENERATE, CHAT = "/generate", "/v1/chat/completions"
PLAIN = [
    (GENERATE, body([300, 7], max_new_tokens=24)),
    (GENERATE, body([301, 9], max_new_tokens=30)),
]
BUDGET = body(
    [6, START],
    builtins.ThinkingBudgetLogitProcessor,
    {"thinking_budget": 3, **THINKING},
    max_new_tokens=12,
    n=2,
)
REPEATS = (
    builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
    {"ngram_size": 1, "window_size": 20},
)
FORCED = {"token_ids": [301, 302], "eos_token_ids": [EOS]}
RAW = {**body([5], *CHAIN, max_new_tokens=13), "return_logprob": True}
RAW["sampling_params"]["custom_params"] = {**CHAIN[1], "raw_logprobs": True}
EDITED: list[tuple[str, dict[str, Any]]] = [
    (GENERATE, RAW),
    (GENERATE, body([5], *CHAIN, max_new_tokens=12)),
    (GENERATE, {**body([5], *CHAIN, max_new_tokens=14), "stream": True}),
    (GENERATE, body([5], *CHOICE, max_new_tokens=12)),
    (GENERATE, BUDGET),
    (GENERATE, body([7], *REPEATS, max_new_tokens=12)),
    (GENERATE, body([8], Recorder, {"tag": "injected", "steering": True}, max_new_tokens=12)),
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "?"}],
            "temperature": 0,
            "max_tokens": 9,
            "custom_logit_processor": builtins.ForcedSequenceLogitProcessor.to_str(),
            "custom_params": FORCED,
        },
    ),
]
#: A grammar without a processor, where the server has grammars.
GRAMMAR = (GENERATE, body([9], regex="[a-z0-9 ]{4,99}", max_new_tokens=9))
#: Beams that continue with any token, and beams that continue with few.
BEAMS: list[tuple[str, dict[str, Any]]] = [
    (GENERATE, body([5], *processor, max_new_tokens=6, beam_width=3, n=2))
    for processor in (REPEATS, CHOICE)
]
#: Hooks that SGLang calls in the thread that serves all requests, where no single request can get
#: the error: an exception that passes them ends the server. docs/monitoring.md lists them.
ENDS = {
    ("server/front/decoded_apart", "decode_apart"),
    ("server/scheduler/beams/results", "finish"),
    ("server/scheduler/beams/results", "tell"),
    ("server/scheduler/beams/steps", "attach"),
    ("server/scheduler/beams/steps", "defer"),
    ("server/scheduler/beams/steps", "edit"),
    ("server/scheduler/beams/steps", "end_failed"),
    ("server/scheduler/beams/steps", "end_failed_prefill"),
    ("server/scheduler/beams/steps", "grow"),
    ("server/scheduler/beams/steps", "score"),
    ("server/scheduler/chains", "accept_and_finalize"),
    ("server/scheduler/chains", "accept_block"),
    ("server/scheduler/chains", "begin"),
    ("server/scheduler/chains", "foresee_block"),
    ("server/scheduler/disaggregated", "note_first"),
    ("server/scheduler/disaggregated", "turn_away"),
    ("server/scheduler/known_drafts", "foresee_chain"),
    ("server/scheduler/known_drafts", "foresee_trees"),
    ("server/scheduler/gate", "admit_req"),
    ("server/scheduler/gate", "from_str"),
    ("server/scheduler/gate", "receive"),
    ("server/scheduler/grammar_time", "accept"),
    ("server/scheduler/grammar_time", "end"),
    ("server/scheduler/grammar_time", "fill"),
    ("server/scheduler/pipeline", "apply"),
    ("server/scheduler/raw_logprobs", "after_sample"),
    ("server/scheduler/raw_logprobs", "after_verify"),
    ("server/scheduler/raw_logprobs", "consume"),
    ("server/scheduler/raw_logprobs", "copy_to_host"),
    ("server/scheduler/release", "finish"),
    ("server/scheduler/sampling", "end_step"),
    ("server/scheduler/sampling", "run"),
    ("server/scheduler/speculation", "apply"),
    ("server/scheduler/speculation", "capture"),
    ("server/scheduler/speculation", "verify"),
    ("server/scheduler/waiting_queue", "hold"),
    ("server/scheduler/waiting_queue", "hold_prebuilt"),
    ("server/startup/ngram_worker", "foresee_found"),
}
#: What runs in nearly every step, and for every request: those of the short form.
CHOSEN = (
    "_engine.batch:Batch.step",
    "_engine.history.attached:detach_row",
    "_engine.history.attached:rows_of",
    "_engine.history.row:Row.accept_tokens",
    "_engine.history.row:Row.ask",
    "server.front.meta_info:expect",
    "server.front.meta_info:take_report",
    "server.gate.guard:Guard.admit",
    "server.scheduler.endings:update_finish_state",
    "server.scheduler.gate:SchedulerGate._begin",
    "server.scheduler.pending:PendingResults._read",
    "server.scheduler.pending:PendingResults.of",
    "server.scheduler.report:report",
    "server.scheduler.sglang_host:SglangHost.look",
)
#: Functions that a server runs for each of its requests in a random order: the fault may end a
#: request without a processor in each process.
OF_EACH = (
    "server.front.",
    "server.gate.coded:Coded.of_reason:",
    "server.gate.field_checks:",
    "server.gate.grammars:",
    "server.gate.guard:Guard.counting:",
    "server.scheduler.aborts:Aborts.know:",
    "server.scheduler.closing:Closings.process:",
    "server.scheduler.gate:",
    "trust.audit:safe_id:",
)
#: A function called at most this often raises at its first call; others, halfway.
FEW = 4
KINDS = [
    "default",
    "ngram trees, mixed chunks",
    "no overlap, no radix cache",
    "data parallel",
    "eagle chains",
    "dflash",
    "two ranks",
]
#: Modules that handle schedules and drafts, in which the kinds differ: they raise on each kind.
DIFFER = ("_engine.", "edits:", "processor:", "request:", "server.scheduler.")
#: Functions that raised, and functions that ended a server, on any kind.
raised: set[str] = set()
ended: set[str] = set()
seen: set[str] = set()


def said(reply: Reply) -> tuple[Any, ...]:
    """Return the kind of an answer, and its tokens or text if it is a success."""
    if reply.status != httpx.codes.OK or reply.body is None:
        return "error", reply.status
    if "choices" in reply.body:
        return "success", [choice["message"]["content"] for choice in reply.body["choices"]]
    answers = reply.body if isinstance(reply.body, list) else [reply.body]
    reasons = [answer["meta_info"]["finish_reason"] for answer in answers]
    if any(reason is None or reason["type"] == "abort" for reason in reasons):
        return "error", reasons
    if "beam_results" in answers[0]["meta_info"]:
        answers = answers[0]["meta_info"]["beam_results"]
    return "success", [answer["output_ids"] for answer in answers]


def plain(name: str) -> str:
    """Return the name of a function without its line."""
    return name.rpartition(":")[0]


def let_through(log: str, name: str) -> set[tuple[str, str]]:
    """Return the hooks that let an error through, one for each process that the log tells of."""
    *befores, _ = log.split(f"{Injected.__name__}: {name}")
    traces = [before.rpartition("Traceback (most recent call last)")[2] for before in befores]
    found = [re.search(r'/sglang_lp/(\S+)\.py", line \d+, in (\w+)', trace) for trace in traces]
    return {(ours[1], ours[2]) for ours in found if ours}


def asked(server: Server) -> list[tuple[str, dict[str, Any]]]:
    """Return the requests of a server: SGLang has no beams with drafts or on two servers."""
    without = {"speculative_algorithm", "disaggregation_mode"} & {*server.arguments}
    beams = BEAMS if has_beam_search() and not without else []
    grammars = [GRAMMAR] if server.arguments.get("grammar_backend") == "xgrammar" else []
    return [*PLAIN, *EDITED, *grammars, *beams]


def answers(server: Server) -> list[tuple[Any, ...]]:
    """Ask everything at once."""

    def ask(path: str, request: dict[str, Any]) -> tuple[Any, ...]:
        try:
            if request.get("stream"):
                return said(server.stream(path, request))
            return said(server.post(path, request))
        except (httpx.HTTPError, OSError) as error:
            return "no answer", type(error).__name__

    requests = asked(server)
    with ThreadPoolExecutor(len(requests)) as pool:
        return [*pool.map(ask, *zip(*requests, strict=True))]


def good_answers(server: Server) -> list[tuple[Any, ...]]:
    """Return the right answers, which the server repeats."""
    good = answers(server)
    assert [kind for kind, _ in good] == ["success"] * len(good), good
    assert answers(server) == good
    return good


def calls_of(server: Server, faults: Faults, good: list[Any]) -> dict[str, int]:
    """Return how often the server calls each function for these answers."""
    faults.watch()
    assert answers(server) == good
    return faults.calls()


def wrong(server: Server, name: str, got: list[Any], good: list[Any]) -> list[str]:
    """Return the successes that differ from the right answers."""
    return [
        f"{name}: {request} became {answer}, expected {expected}"
        for request, answer, expected in zip(asked(server), got, good, strict=True)
        if answer[0] == "success" and answer != expected
    ]


def disturbed(name: str, times: int, got: list[Any], good: list[Any]) -> list[str]:
    """Return the answers of the neighbours if they differ from the right answers.

    Args:
        name: Name of the function.
        times: Number of processes in which it raised.
        got: The answers.
        good: The right answers.
    """
    if name.startswith(OF_EACH) and sum(map(operator.ne, got, good)) <= times:
        return []
    count = len(PLAIN)
    return [f"{name}: neighbours got {got[:count]}"] if got[:count] != good[:count] else []


class Serving:
    """A server that is started again once it has ended.

    Attributes:
        server: Answers requests.
        faults: Lets its functions raise.
    """

    server: Server
    faults: Faults

    def __init__(self, model: Any, tmp_path: Any, name: str) -> None:
        self.arguments, self.variables = SERVERS[name]
        if any(key.endswith("model_path") for key in self.arguments):
            models = draft_models.make_all(tmp_path / "models", model)
            self.arguments = {
                key: models[value] if key.endswith("model_path") else value
                for key, value in self.arguments.items()
            }
        self._model, self._path, self._starts = model, tmp_path, 0
        self._stack = ExitStack()
        self.start()

    def start(self) -> None:
        self.close()
        self._starts += 1
        directory = self._path / f"server {self._starts}"
        directory.mkdir()
        variables = {"SGLANG_LP_POLICY": str(POLICY), **self.variables}
        self.server = self._stack.enter_context(
            launch(
                self._model,
                directory,
                self.arguments,
                paths=[PROBES],
                variables=variables,
                forked=True,
            )
        )
        self.faults = Faults(self.server)

    def close(self) -> None:
        self._stack.close()

    def log_text(self) -> str:
        """Return the server's log so far."""
        return self.server.log_text()

    def is_over(self) -> bool:
        """Tell whether the server has ended, or is about to."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.server.process.poll() is None:
            time.sleep(0.1)
            try:
                return not self.server.is_healthy()
            except httpx.HTTPError:
                continue
        return True


def problems(
    serving: Serving, name: str, after: int, good: list[Any], *, new: bool = False
) -> list[str]:
    """Let one function raise, and return what was wrong with the answers.

    Args:
        serving: The server.
        name: Name of the function, as in :meth:`Faults.calls`.
        after: Number of calls that succeed first.
        good: The right answers.
        new: Whether the server is new, and keeps nothing of the requests before.
    """
    serving.faults.inject(name, after)
    got = answers(serving.server)
    found = wrong(serving.server, name, got, good)
    if any(kind == "no answer" for kind, _ in got) and serving.is_over():
        hooks = let_through(serving.log_text(), name)
        if not hooks & ENDS:
            found.append(f"{name}: the server ended, let through by {sorted(hooks)}")
        raised.add(name)
        ended.add(name)
        serving.start()
        return found
    times = serving.faults.raised()
    found += disturbed(name, times, got, good)
    if times:
        raised.add(name)
    elif after:  # fewer calls than before: caches of earlier requests are filled
        return found + problems(serving, name, 0, good)
    elif name not in raised and not new:  # it ran once, and its result is cached
        serving.start()
        return found + problems(serving, name, 0, good, new=True)
    return found


@pytest.fixture
def serving(request, tiny, tmp_path):
    serving = Serving(tiny, tmp_path, request.param)
    yield serving
    serving.close()


def chosen(calls: dict[str, int]) -> list[str]:
    """Return the functions of the short form that a server calls."""
    return [name for name in calls if plain(name) in CHOSEN]


def problems_of_some(
    server: Any, faults: Any, names: list[str], calls: dict[str, int], good: list[Any]
) -> list[str]:
    """Let functions raise that end no server, and return what was wrong with the answers."""
    found: list[str] = []
    for name in names:
        # How often a function is called depends on how SGLang batches; the first call always comes.
        for before in dict.fromkeys((calls[name] // 2 if calls[name] > FEW else 0, 0)):
            faults.inject(name, before)
            got = answers(server)
            times = faults.raised()
            found += [*wrong(server, name, got, good), *disturbed(name, times, got, good)]
            if times:
                break
        else:
            found.append(f"{name}: was not called")
    return found


def problems_of_all(serving: Any) -> list[str]:
    """Let every function raise that a server calls, and return what was wrong with the answers."""
    good = good_answers(serving.server)
    calls = calls_of(serving.server, serving.faults, good)
    seen.update(calls)
    found: list[str] = []
    names = {name for name in calls if name.startswith(DIFFER) or name not in raised}
    for name in sorted(names - ended):  # once is enough: it takes a start
        # Halfway through its calls; with few calls the first, since later a cache may be filled.
        found += problems(serving, name, calls[name] // 2 if calls[name] > FEW else 0, good)
    if answers(serving.server) != good:
        found.append("in the end: other answers than in the beginning")
    return found


@on_servers("default", "ngram trees, mixed chunks")
def test_no_answer_is_wrong_and_a_success_whatever_part_of_a_step_raises(server):
    faults, good = Faults(server), good_answers(server)
    calls = calls_of(server, faults, good)
    names = chosen(calls)
    drafts = "speculative_algorithm" in server.arguments
    assert len(names) >= len(CHOSEN) - drafts
    assert problems_of_some(server, faults, names, calls, good) == []
    assert answers(server) == good


def test_the_page_for_operators_names_the_hooks_that_end_a_server():
    page = (ROOT / "docs/monitoring.md").read_text()
    table = page.partition("## When this toolkit itself fails")[2].partition("##")[0]
    assert {*re.findall(r"`(\w+)`(?=.* \| )", table)} == {name for _, name in ENDS}


@pytest.mark.faults
@pytest.mark.parametrize("serving", KINDS, indirect=True)
def test_no_answer_is_wrong_and_a_success_whatever_function_raises(serving):
    found = problems_of_all(serving)
    assert not found, "\n".join(found)


@pytest.mark.faults
def test_every_function_that_a_server_calls_was_made_to_raise():
    assert len(seen) > 200
    assert seen - raised == set()
