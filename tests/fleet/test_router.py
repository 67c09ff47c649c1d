"""Two guarded workers behind sglang-router: every form, a death, an addition, a rolling restart."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import orjson
import pytest

from sglang_lp import attach, wire
from sglang_lp.cli import main
from sglang_lp.wire.names import POLICY_HEADER
from support.models import tiny_model
from support.processes import free_port
from support.servers.listening import Answered, listening
from support.servers.router import route
from support.servers.server import launch

pytestmark = [pytest.mark.fleet, pytest.mark.engine, pytest.mark.timeout(1800)]

POLICY = Path(__file__).parents[2] / "support" / "servers" / "fleet.toml"
TEXT = "The router was here."
FORCED = attach("ForcedSequenceLogitProcessor", text=TEXT)
OPENAI = {"model": "tiny", "temperature": 0}
_numbers = itertools.count()


class Worker:
    """A server that can be started anew on its port."""

    def __init__(self, model, directory):
        self.port, self._model, self._directory = free_port(), model, directory
        self.url = f"http://127.0.0.1:{self.port}"
        self._stack = ExitStack()

    def start(self, policy):
        arguments = {"port": self.port, "served_model_name": "tiny"}
        variables = {"SGLANG_LP_POLICY": str(policy)}
        server = launch(self._model, self._directory, arguments, variables=variables, forked=True)
        self._stack.enter_context(server)

    def stop(self):
        self._stack.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def another_policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "another.toml"
    path.write_text(POLICY.read_text() + "[ceilings]\ndry_multiplier = { at_most = 1 }\n")
    return path


@pytest.fixture(scope="module")
def workers(model, tmp_path_factory):
    """Two workers of one policy."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        found = [Worker(model, tmp_path_factory.mktemp("worker")) for _ in range(2)]
        for worker in found:
            stack.callback(worker.stop)
        list(pool.map(lambda worker: worker.start(POLICY), found))
        yield found


@pytest.fixture(scope="module")
def odd_one(model, tmp_path_factory, another_policy):
    """A worker of another policy, until a test kills it."""
    worker = Worker(model, tmp_path_factory.mktemp("odd-one"))
    try:
        worker.start(another_policy)
        yield worker
    finally:
        worker.stop()


def generate(prompt, stream, attached=FORCED):
    body = {"text": prompt, "stream": stream, "sampling_params": {"max_new_tokens": 24}}
    return "/generate", attached.generate_body(body, routed=True)


def completions(prompt, stream, attached=FORCED):
    body = {**OPENAI, "prompt": prompt, "max_tokens": 24, "stream": stream}
    return "/v1/completions", body | attached.extra_body(routed=True)


def chat(prompt, stream, attached=FORCED):
    messages = [{"role": "user", "content": prompt}]
    body = {**OPENAI, "messages": messages, "max_tokens": 24, "stream": stream}
    return "/v1/chat/completions", body | attached.extra_body(routed=True)


def responses(prompt, stream, attached=FORCED):
    body = {**OPENAI, "input": prompt, "max_output_tokens": 24, "stream": stream}
    return "/v1/responses", body | attached.extra_body(routed=True)


FORMS = [*itertools.product((generate, completions, chat, responses), (False, True))]


def text_of(answer):
    """Return the text of an answer, whichever endpoint wrote it and whether it is streamed."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return whole_text(answer.json())
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [orjson.loads(line) for line in lines]
    if "text" in events[-1]:
        return events[-1]["text"]
    if "type" in events[-1]:
        return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    parts = [choice for event in events for choice in event["choices"]]
    return "".join(
        (part.get("delta") or part).get("content") or part.get("text") or "" for part in parts
    )


def whole_text(body):
    if "output" in body:
        return "".join(part["text"] for item in body["output"] for part in item["content"])
    if "text" in body:
        return body["text"]
    (choice,) = body["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def ask(router, asked):
    path, body = asked
    return httpx.post(router.url + path, json=body, timeout=300, trust_env=False)


def check(answer, attached=FORCED, text=TEXT):
    assert answer.status_code == 200, answer.text
    attached.check(answer)
    assert text_of(answer).startswith(text)
    return answer.headers[POLICY_HEADER]


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
def test_every_form_works_whichever_worker_answers(workers, policy, tmp_path):
    with route([worker.url for worker in workers], policy, tmp_path) as router:
        asked = [form(f"{next(_numbers)} Hello.", stream) for form, stream in FORMS * 3]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda one: ask(router, one), asked))

    assert len({check(answer) for answer in answers}) == 1


@pytest.mark.parametrize(("form", "stream"), FORMS)
def test_a_profile_is_chosen_by_its_name(workers, form, stream, tmp_path):
    with route([workers[0].url], "round_robin", tmp_path) as router:
        for text, said in (("calm", "Calm."), (wire.fold("calm", {"text": "Own."}), "Own.")):
            path, body = form("Hello.", stream)
            if path == "/generate":
                body["custom_logit_processor"] = text
            else:
                body["metadata"] = {"sglang_lp": text}
            check(ask(router, (path, body)), text=said)


def test_refusals_take_no_worker_out(workers, tmp_path):
    with route([worker.url for worker in workers], "round_robin", tmp_path) as router:
        path, body = chat("Hello.", stream=False)
        bad = {**body, "metadata": {"sglang_lp": "nobody"}}
        assert {ask(router, (path, bad)).status_code for _ in range(40)} == {400}

        check(ask(router, (path, body)))


def test_a_worker_that_is_added_serves_and_its_other_policy_is_told(
    workers, odd_one, tmp_path, capsys
):
    with route([worker.url for worker in workers], "round_robin", tmp_path) as router:
        assert main(["doctor", "--url", router.url]) == 0
        router.add(odd_one.url)
        asked = [form(f"{next(_numbers)} Hello.", stream) for form, stream in FORMS]
        assert len({check(ask(router, one)) for one in asked}) == 2

        capsys.readouterr()
        assert main(["doctor", "--url", router.url]) == 1
        assert "the servers behind this URL decide differently" in capsys.readouterr().out
    urls = [part for one in (*workers, odd_one) for part in ("--url", one.url)]
    assert main(["doctor", *urls[:4]]) == 0
    assert main(["doctor", *urls]) == 1
    assert "FAILED  the same policy: the servers decide differently" in capsys.readouterr().out


def test_a_worker_that_dies_ends_its_own_streams_and_nothing_else(workers, odd_one, tmp_path):
    """Its policy tells its answers from the other's."""
    long = {"temperature": 0, "max_new_tokens": 2000, "ignore_eos": True}
    with route([workers[0].url, odd_one.url], "round_robin", tmp_path) as router:
        ends = {}
        begun = threading.Barrier(3, timeout=120)

        def follow(number):
            body = {"text": f"{number} Hello.", "stream": True, "sampling_params": long}
            asked = FORCED.generate_body(body, routed=True)
            with httpx.stream(
                "POST", router.url + "/generate", json=asked, timeout=300, trust_env=False
            ) as answer:
                lines = answer.iter_lines()
                next(lines)
                begun.wait()
                try:
                    last = list(lines)[-2:]
                except httpx.TransportError as error:
                    last = [type(error).__name__]
            ends[answer.headers[POLICY_HEADER]] = last

        with ThreadPoolExecutor(2) as pool:
            streams = [pool.submit(follow, number) for number in range(2)]
            begun.wait()
            odd_one.stop()
            asked = [form(f"{next(_numbers)} Hello.", stream) for form, stream in FORMS]
            (policy,) = {check(ask(router, one)) for one in asked}
            for stream in streams:
                stream.result()

    assert "data: [DONE]" in ends.pop(policy)
    (broken,) = ends.values()
    assert "data: [DONE]" not in broken


def control(workers, policy):
    """Restart the worker on a port when asked to, as a service manager does."""
    by_port = {str(worker.port): worker for worker in workers}

    def answer(asked):
        worker = by_port[asked.path.strip("/")]
        worker.stop()
        worker.start(policy)
        return Answered(200)

    return listening(answer)


def test_a_rolling_restart_changes_the_policy_with_no_failed_request(
    workers, another_policy, tmp_path, capsys
):
    over = threading.Event()
    seen = []

    def send(kinds):
        for form, stream in itertools.cycle(kinds):
            if over.is_set():
                return
            seen.append(check(ask(router, form(f"{next(_numbers)} Hello.", stream))))
            time.sleep(0.05)

    with (
        route([worker.url for worker in workers], "round_robin", tmp_path) as router,
        control(workers, another_policy) as url,
        ThreadPoolExecutor(2) as pool,
    ):
        senders = [pool.submit(send, kinds) for kinds in (FORMS, FORMS[::-1])]
        restart = f"curl --silent --show-error --fail --noproxy * -X POST {url}/{{port}}"
        try:
            code = main(["roll", "--router", router.url, "--restart", restart])
            time.sleep(2)
        finally:
            over.set()
        for sender in senders:
            sender.result()
        said = capsys.readouterr().out
        assert code == 0, said

    old, new = seen[0], seen[-1]
    assert old != new
    assert set(seen) == {old, new}
    assert set(seen[-8:]) == {new}
    assert len(seen) > 20
