"""Whatever of the toolkit raises while a server serves, no answer is both wrong and a success.

Which functions there are is seen on the server itself: every one that it calls is made to raise,
once, in turn. A neighbour without a processor gets its answer, unless the server ends; then its log
says where the toolkit failed.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from sglang_lp import builtins
from support import draft_models
from support.asking import body
from support.eager import CHAIN, CHOICE, START, THINKING
from support.injecting import Faults, Injected
from support.recording import Recorder
from support.server import Reply, launch
from support.servers import POLICY, PROBE, SERVERS
from support.tiny_model import EOS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

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
NGRAMS = body(
    [7],
    builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
    {"ngram_size": 1, "window_size": 20},
    max_new_tokens=12,
)
FORCED = {"token_ids": [301, 302], "eos_token_ids": [EOS]}
EDITED: list[tuple[str, dict[str, Any]]] = [
    (GENERATE, body([5], *CHAIN, max_new_tokens=12)),
    (GENERATE, {**body([5], *CHAIN, max_new_tokens=14), "stream": True}),
    (GENERATE, body([5], *CHOICE, max_new_tokens=12)),
    (GENERATE, BUDGET),
    (GENERATE, NGRAMS),
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
#: What runs for each request, step and answer. In the rest of the toolkit, which ``make
#: test-faults`` goes through too, a function that raises is a processor's fault.
ROOMS = ("_engine.", "server.front.meta_info", "server.scheduler.")
#: Calls of a function of which the first one raises.
FEW = 4
#: The short form ends a server no more often than this: each takes a start.
MOST_ENDED = 2
STARTED = ["default", "ngram trees, mixed chunks"]
LONG = ["no overlap, no radix cache", "data parallel", "eagle chains"]


def said(reply: Reply) -> tuple[Any, ...]:
    """Return what an answer says: its tokens or its text, if it is a success."""
    if reply.status != httpx.codes.OK or reply.body is None:
        return "error", reply.status
    if "choices" in reply.body:
        return "success", [choice["message"]["content"] for choice in reply.body["choices"]]
    answers = reply.body if isinstance(reply.body, list) else [reply.body]
    reasons = [answer["meta_info"]["finish_reason"] for answer in answers]
    if any(reason is None or reason["type"] == "abort" for reason in reasons):
        return "error", reasons
    return "success", [answer["output_ids"] for answer in answers]


class Serving:
    """A server that is started again once it has ended."""

    def __init__(self, model: Any, tmp_path: Any, name: str) -> None:
        self.arguments, self.variables = SERVERS[name]
        if "speculative_draft_model_path" in self.arguments:
            models = draft_models.make_all(tmp_path / "models", model)
            self.arguments = {
                key: models[value] if key.endswith("model_path") else value
                for key, value in self.arguments.items()
            }
        self._model, self._path = model, tmp_path
        self._stack, self.ended = ExitStack(), -1
        self.start()

    def start(self) -> None:
        self.close()
        self.ended += 1
        directory = self._path / f"server {self.ended}"
        directory.mkdir()
        variables = {"SGLANG_LP_POLICY": str(POLICY), **self.variables}
        self.server = self._stack.enter_context(
            launch(self._model, directory, self.arguments, paths=[PROBE], variables=variables)
        )
        self.faults = Faults(self.server)

    def close(self) -> None:
        self._stack.close()

    def answers(self) -> list[tuple[Any, ...]]:
        """Ask everything at once."""

        def ask(path: str, request: dict[str, Any]) -> tuple[Any, ...]:
            try:
                if request.get("stream"):
                    return said(self.server.stream(path, request))
                return said(self.server.post(path, request))
            except (httpx.HTTPError, OSError) as error:
                return "no answer", type(error).__name__

        asked = [*PLAIN, *EDITED]
        with ThreadPoolExecutor(len(asked)) as pool:
            return [*pool.map(ask, *zip(*asked, strict=True))]

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


def problems(serving: Serving, name: str, calls: int, good: list[Any]) -> list[str]:
    """Let one function raise, and return what was wrong with the answers."""
    # In the middle of what it does; what is called a few times may find a cache filled.
    serving.faults.inject(name, calls // 2 if calls > FEW else 0)
    answers = serving.answers()
    gone = any(kind == "no answer" for kind, _ in answers)
    found = [
        f"{name}: {asked} became {answer}, expected {expected}"
        for asked, answer, expected in zip([*PLAIN, *EDITED], answers, good, strict=True)
        if answer[0] == "success" and answer != expected
    ]
    if gone and serving.is_over():
        log = serving.server.log_text()
        if f"{Injected.__name__}: {name}" not in log:
            found.append(f"{name}: the server ended without a word about it")
        serving.start()
        return found
    neighbours = answers[: len(PLAIN)]
    if neighbours != good[: len(PLAIN)]:
        found.append(f"{name}: neighbours got {neighbours}")
    if not serving.faults.raised():
        found.append(f"{name}: was not called")
    return found


def raise_all(serving: Serving, *, rooms: tuple[str, ...], most_ended: int) -> list[str]:
    """Let every function raise that requests reach; return what was wrong."""
    good = serving.answers()
    assert [kind for kind, _ in good] == ["success"] * len(good), good
    assert serving.answers() == good
    serving.faults.watch()
    assert serving.answers() == good
    calls = serving.faults.calls()
    names = [name for name in calls if name.startswith(rooms)]
    assert len(names) > 100
    found: list[str] = []
    for name in names:
        if serving.ended > most_ended:
            break
        found += problems(serving, name, calls[name], good)
    assert serving.answers() == good
    return found


@pytest.fixture
def serving(request, tiny, tmp_path):
    serving = Serving(tiny, tmp_path, request.param)
    yield serving
    serving.close()


@pytest.mark.faults
@pytest.mark.parametrize("serving", STARTED, indirect=True)
def test_no_answer_is_wrong_and_a_success_whatever_part_of_a_step_raises(serving):
    assert raise_all(serving, rooms=ROOMS, most_ended=MOST_ENDED) == []


@pytest.mark.faults
@pytest.mark.parametrize("serving", [*STARTED, *LONG], indirect=True)
def test_no_answer_is_wrong_and_a_success_whatever_function_raises(serving):
    assert raise_all(serving, rooms=("",), most_ended=1000) == []
