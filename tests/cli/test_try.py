"""``sglang-lp try``: the page's server asks one server only, for one page only."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread

import orjson
import pytest

from sglang_lp import builtins, cli
from sglang_lp.cli.trying.form import make_form
from sglang_lp.cli.trying.page_server import PageServer
from sglang_lp.cli.trying.snippets import write_snippets
from sglang_lp.cli.trying.target import Target
from sglang_lp.policy import Policy
from support.fakes.offering import OFFERED, PLAIN, answering
from support.servers.listening import Answered, listening

WISH = {
    "processor": "BadWordsLogitProcessor",
    "params": {"words": ["five"]},
    "prompt": "How many?",
    "chat": True,
    "max_tokens": 16,
    "temperature": 0,
}


@contextmanager
def serving(answer):
    """Serve the page for a server that a test plays; yields the page's server."""
    with listening(answer) as url, PageServer(Target.find(url, Policy())) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def asked(server, name, body=None, **headers):
    """Return the status, the headers and the JSON of an answer."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    sent = {"Origin": f"http://{server.host}", "Content-Type": "application/json"}
    content = None if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
    given = {"Host": server.host, **(sent if body is not None else {}), **headers}
    place = name if name.startswith("/") else server.place + name
    connection.request("GET" if body is None else "POST", place, content, given)
    answer = connection.getresponse()
    read = answer.read()
    connection.close()
    is_json = answer.headers["Content-Type"].startswith("application/json")
    return answer.status, answer.headers, orjson.loads(read) if is_json else read.decode()


def test_both_answers_come_with_the_trace_and_the_request_to_copy():
    answer, got = answering()
    with serving(answer) as server:
        status, _, said = asked(server, "ask", WISH)

    assert status == 200
    assert [one["text"] for one in said["answers"]] == [" the answer is six", PLAIN]
    assert [one["error"] for one in said["answers"]] == ["", ""]
    assert "processors: BadWordsLogitProcessor" in said["answers"][0]["about"]
    assert "the first difference" in said["trace"]
    assert said["note"] == ""
    bodies = [one.body for one in got if one.path == "/v1/chat/completions"]
    assert {one.get("custom_logit_processor") for one in bodies} == {WISH["processor"], None}
    assert "return_token_ids" not in said["snippets"]["curl"]


@pytest.mark.parametrize(
    ("name", "headers", "status", "message"),
    [
        ("", {"Host": "evil.example:80"}, 403, "Host: expected 127.0.0.1:"),
        ("ask", {"Host": "evil.example:80"}, 403, "Host: expected 127.0.0.1:"),
        ("ask", {"Origin": "http://evil.example"}, 403, "Origin: expected this page"),
        ("ask", {"Origin": "null"}, 403, "Origin: expected this page"),
        ("ask", {"Content-Type": "text/plain"}, 415, "Content-Type: expected application/json"),
        ("ask", {"Content-Length": "1048577"}, 413, "at most 1048576 bytes, got '1048577'"),
        ("ask", {"Content-Length": "-1"}, 413, "at most 1048576 bytes, got '-1'"),
        ("ask", {"Content-Length": "9" * 5000}, 413, "at most 1048576 bytes, got '999"),
        ("generate", {}, 404, "there is no 'generate'"),
        ("/ask", {}, 404, "expected the address that sglang-lp try printed"),
        ("/" + "x" * 22 + "/ask", {}, 404, "expected the address"),
    ],
)
def test_another_page_gets_nothing(name, headers, status, message):
    answer, got = answering()
    with serving(answer) as server:
        before = len(got)
        refused, _, said = asked(server, name, WISH if name else None, **headers)

        assert (refused, len(got)) == (status, before)
        assert message in said["error"]


def test_a_form_of_another_page_has_no_origin_of_its_own():
    answer, got = answering()
    with serving(answer) as server:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", server.place + "ask", orjson.dumps(WISH), headers)

        assert connection.getresponse().status == 403
        connection.close()
    assert [one for one in got if one.method == "POST"] == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the form: Input data was truncated"),
        (b"\xff", "the form: "),
        ([], "the form: Expected `object`, got `array`"),
        ({**WISH, "max_tokens": 0}, "Expected `int` >= 1"),
        ({**WISH, "params": []}, "Expected `object`, got `array` - at `$.params`"),
        ({**WISH, "path": "/abort_request"}, "unknown field `path`"),
        ({}, "missing required field `processor`"),
    ],
)
def test_a_form_that_cannot_be_read_is_a_400(body, message):
    answer, got = answering()
    with serving(answer) as server:
        status, _, said = asked(server, "ask", body)

    assert status == 400
    assert message in said["error"]
    assert [one for one in got if one.method == "POST"] == []


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        (
            Answered(400, {"error": {"message": "words: expected a list"}}),
            "HTTP 400: words: expected a list",
        ),
        (Answered(502, b"<html>Bad Gateway</html>"), "HTTP 502: '<html>Bad Gateway</html>'"),
        (Answered(200, {"choices": []}), "expected an answer of SGLang, got HTTP 200"),
        (Answered(200, [1]), "expected an answer of SGLang, got HTTP 200"),
        (Answered(200, b"{"), "expected an answer of SGLang, got HTTP 200"),
        (Answered(302, b"", {"Location": "http://evil.example/"}), "HTTP 302"),
    ],
)
def test_what_is_no_answer_is_shown_as_an_error(answered, message):
    answer, _ = answering(completions=answered)
    with serving(answer) as server:
        status, _, said = asked(server, "ask", WISH)

    assert status == 200
    assert all(message in one["error"] for one in said["answers"])
    assert said["trace"] == ""
    assert "BadWordsLogitProcessor" in said["snippets"]["curl"]


def test_a_server_that_has_gone_is_shown_as_an_error():
    answer, _ = answering()
    with listening(answer) as url:
        target = Target.find(url, Policy())
    with PageServer(target) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        _, _, said = asked(server, "ask", WISH)
        server.shutdown()

    assert all("/v1/chat/completions: no answer" in one["error"] for one in said["answers"])


def test_an_answer_that_cannot_be_traced_is_shown_with_the_reason():
    answer, _ = answering(tokenizer=Answered(404, {"detail": "Not Found"}))
    with serving(answer) as server:
        _, _, said = asked(server, "ask", WISH)
        _, _, foreign = asked(server, "ask", {**WISH, "processor": "own:Own"})

    assert said["answers"][0]["text"] == " the answer is six"
    assert (said["trace"], foreign["trace"]) == ("", "")
    assert "expected the server's tokenizer" in said["note"]


def test_a_class_that_this_machine_does_not_allow_is_not_run_for_a_trace():
    answer, _ = answering()
    with serving(answer) as server:
        _, _, said = asked(server, "ask", {**WISH, "processor": "own:Own", "chat": False})

    assert said["answers"][0]["text"] == " the answer is six"
    assert said["trace"] == ""
    assert "--policy FILE" in said["note"]


def test_the_page_and_its_files_are_served_and_nothing_else():
    answer, _ = answering()
    with serving(answer) as server:
        kinds = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
        for name, kind in kinds.items():
            status, headers, _ = asked(server, name)
            assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
            assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
            assert headers["Cache-Control"] == "no-store"
        for name in ("form.py", "../page.js", "..%2ftarget.py"):
            assert asked(server, name)[0] == 404


def test_the_key_is_sent_to_the_server_and_never_to_the_page(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key")
    answer, got = answering()
    with serving(answer) as server:
        told = [asked(server, name)[2] for name in ("", "page.js", "offer")]
        told.append(asked(server, "ask", WISH)[2])

    assert {one.headers["Authorization"] for one in got} == {"Bearer a-secret-key"}
    assert "a-secret-key" not in str(told)
    assert all(
        "OPENAI_API_KEY" in one for one in told[-1]["snippets"].values() if "openai" not in one
    )


def test_every_parameter_of_every_built_in_has_a_field_of_its_type():
    kinds = {}
    for name in builtins.__all__:
        processor = getattr(builtins, name)
        form = make_form({"name": name, "parameters": _parameters(processor)})
        kinds |= {(name, one["name"]): one["kind"] for one in form["fields"]}
        assert all(one["words"] and one["about"] for one in form["fields"]), name
        assert form["example"] == processor.example

    assert kinds["BadWordsLogitProcessor", "words"] == "lines"
    assert kinds["BadWordsLogitProcessor", "ignore_case"] == "choice"
    assert kinds["BadWordsLogitProcessor", "where"] == "choice"
    assert kinds["ThinkingBudgetLogitProcessor", "thinking_budget"] == "number"
    assert kinds["ForcedSequenceLogitProcessor", "text"] == "text"
    assert kinds["DisallowedTokensLogitsProcessor", "token_ids"] == "json"


def _parameters(processor):
    return [{"name": name, "required": False} for name in processor.Params.__struct_fields__]


def test_a_class_that_only_the_server_knows_has_fields_for_any_value():
    own, foreign = map(make_form, OFFERED["processors"][-2:])

    assert [(one["name"], one["kind"], one["required"]) for one in own["fields"]] == [
        ("size", "json", True)
    ]
    assert foreign["fields"] == []


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("language", ["curl", "openai", "python"])
def test_the_request_to_copy_sends_what_was_sent(language, chat, tmp_path):
    prompt = 'It\'s "5"\n$(date) `id` \\ \u2028 é'
    answer, got = answering()
    with serving(answer) as server:
        wish = {
            **WISH,
            "prompt": prompt,
            "chat": chat,
            "params": {"words": [prompt], "where": None},
        }
        snippet = asked(server, "ask", wish)[2]["snippets"][language]
        (sent,) = (one for one in got if one.body and "custom_params" in one.body)
        before = len(got)
        program = tmp_path / "copied"
        program.write_text(snippet)
        command = ["sh"] if language == "curl" else [sys.executable]
        done = subprocess.run([*command, program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert " the answer is six" in done.stdout
    (copied,) = got[before:]
    assert copied.path == sent.path
    assert {**copied.body, "return_token_ids": True} == sent.body


def test_the_key_is_named_in_what_is_copied():
    body = {"model": "m", "prompt": "p"}
    said = write_snippets("http://127.0.0.1:1", "/v1/completions", body, key=True)

    assert 'Bearer $OPENAI_API_KEY"' in said["curl"]
    assert 'os.environ["OPENAI_API_KEY"]' in said["python"]
    assert "api_key" not in said["openai"], "the client reads OPENAI_API_KEY by itself"


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        ({"sglang_lp": Answered(404, {"detail": "Not Found"})}, "the server is not guarded"),
        ({"sglang_lp": Answered(503, {**OFFERED, "guarded": False})}, "a hook is lost"),
        ({"models": Answered(200, {"data": []})}, "/v1/models names no model"),
    ],
)
def test_a_server_that_cannot_be_tried_is_an_error_in_one_line(answered, message, capsys):
    answer, _ = answering(**answered)
    with listening(answer) as url:
        assert cli.main(["try", "--url", url, "--no-open"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_the_command_opens_the_page_that_it_prints_unless_it_is_told_not_to(capsys, monkeypatch):
    opened, served = [], []

    def serve(server):
        served.append(server.page)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(PageServer, "serve_forever", serve)
    answer, _ = answering()
    with listening(answer) as url:
        assert cli.main(["try", "--url", url, "--no-open"]) == 130
        assert opened == []
        assert cli.main(["try", "--url", url + "/v1"]) == 130
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    assert printed == served
    assert opened == served[1:]
