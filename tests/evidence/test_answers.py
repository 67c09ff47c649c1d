"""A run that was stopped goes on where it was, and asks nothing twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from benchmarks.evidence.answers import Answer, Ask, Kept
from benchmarks.evidence.asking import ask_all

ANSWER = Answer(text="yes", output_ids=(1, 2), finished=True, nats=(0.5,))


def ask(arm: str, prompt: int, **more: object) -> Ask:
    body = {"input_ids": [prompt, len(arm)], "sampling_params": {}}
    return Ask("loops", arm, prompt, "a server", body, **more)


def test_an_answer_is_there_in_the_next_run(tmp_path):
    Kept(tmp_path / "kept.jsonl").put(ask("none", 1), ANSWER)
    again = Kept(tmp_path / "kept.jsonl")
    assert again.get(ask("none", 1)) == ANSWER
    assert again.get(ask("none", 2)) is None


def test_what_is_asked_in_another_way_is_asked_again(tmp_path):
    kept = Kept(tmp_path / "kept.jsonl")
    kept.put(ask("none", 1), ANSWER)
    assert kept.get(ask("none", 1, judged=True)) is None


def test_the_line_at_which_a_run_was_killed_is_left_out(tmp_path):
    file = tmp_path / "kept.jsonl"
    Kept(file).put(ask("none", 1), ANSWER)
    with file.open("ab") as cut:
        cut.write(b'{"digest": "0')
    assert Kept(file).get(ask("none", 1)) == ANSWER


def test_arms_are_compared_on_the_prompts_that_all_of_them_answered(tmp_path):
    kept = Kept(tmp_path / "kept.jsonl")
    asks = [ask(arm, prompt) for prompt in range(3) for arm in ("none", "other")]
    for one in asks[:5]:
        kept.put(one, ANSWER)
    assert {arm: [*of] for arm, of in kept.whole(asks).items()} == {
        "none": [0, 1],
        "other": [0, 1],
    }


@pytest.fixture
def server():
    """One that answers with the prompt, and remembers how many it had at once."""
    asked: list[list[int]] = []
    now, most = [0], [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            now[0] += 1
            most[0] = max(most[0], now[0])
            body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["input_ids"])
            time.sleep(0.02)
            logprobs = [[-1.0, 0, None]] * len(body["input_ids"])
            meta = {"finish_reason": {"type": "stop"}, "input_token_logprobs": logprobs}
            said = {"text": "yes", "output_ids": [7], "meta_info": meta}
            wrong = body["input_ids"][0] == 13
            self.send_response(400 if wrong else 200)
            self.end_headers()
            now[0] -= 1
            self.wfile.write(b"no such thing" if wrong else orjson.dumps(said))

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.asked, serving.most = asked, most
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def run(server, asks, kept, seconds=60.0):
    url = f"http://127.0.0.1:{server.server_port}"
    ask_all([url, url], asks, kept, time.monotonic() + seconds, lambda: None)


def test_a_refusal_is_an_answer_too(server, tmp_path):
    asks = [ask("none", prompt) for prompt in (1, 2, 13)]
    kept = Kept(tmp_path / "kept.jsonl")
    run(server, asks, kept)
    assert kept.get(asks[0]) == Answer(text="yes", output_ids=(7,), finished=True)
    assert "HTTP 400: no such thing" in kept.get(asks[2]).error


def test_what_is_judged_has_the_nats_of_its_tokens(server, tmp_path):
    kept = Kept(tmp_path / "kept.jsonl")
    run(server, [ask("none", 5, judged=True)], kept)
    assert kept.get(ask("none", 5, judged=True)).nats == (1.0,)
    assert server.asked == [[5, 4], [5, 4, 7]]


def test_what_is_to_be_alone_is(server, tmp_path):
    run(server, [ask("none", at, alone=True) for at in range(6)], Kept(tmp_path / "kept.jsonl"))
    assert server.most == [1]


def test_copies_of_a_server_are_asked_in_turns(server, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), server.RequestHandlerClass) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        counted = Counter()
        finish = server.finish_request, other.finish_request
        for copy, serve in zip((server, other), finish, strict=True):
            copy.finish_request = lambda *given, copy=copy, serve=serve: (
                counted.update([copy.server_port]),
                serve(*given),
            )
        urls = [f"http://127.0.0.1:{copy.server_port}" for copy in (server, other)]
        kept = Kept(tmp_path / "kept.jsonl")
        asks = [ask("none", at) for at in range(6)]
        ask_all(urls, asks, kept, time.monotonic() + 60, lambda: None)
        other.shutdown()
        thread.join()
    assert all(kept.get(one) for one in asks)
    assert counted == {server.server_port: 3, other.server_port: 3}


def test_nothing_is_sent_once_the_time_is_over(server, tmp_path):
    run(server, [ask("none", 1)], Kept(tmp_path / "kept.jsonl"), seconds=-1)
    assert server.asked == []
