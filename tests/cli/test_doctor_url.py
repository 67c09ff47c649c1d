"""Verdicts of ``sglang-lp doctor --url`` on the answers of a server or of a proxy before it."""

from contextlib import ExitStack

import pytest

from sglang_lp.cli import main, server_checks
from support.servers.listening import Answered, listening

REFUSED = "custom_logit_processor: expected a class that this server allows, got the class"
CHAT = "/v1/chat/completions"
USUAL = "/v1/responses", "/v1/messages"
FORCED = "The doctor was here. And more."
FLAG = "processors are off: add --enable-custom-logit-processor to the server's command"
INSTALL = "install sglang-lp where the server runs"


class Guarded:
    """Answers like a guarded server, except for the attributes that a test changes."""

    named = "ForcedSequenceLogitProcessor"
    drops: tuple[str, ...] = ()
    drops_routed: tuple[str, ...] = ()
    unpickles = False
    disabled = False
    ended = "budget"
    pair = True
    models = ("m",)
    policies = ("0123456789abcdef",)
    open_routes = (401, {"error": "Unauthorized"})
    asked = 0
    routed = 0
    usual = 0

    def answer(self, path, body, headers):  # noqa: PLR0911 - one for each way
        self.key = headers.get("Authorization")
        self.asked += 1
        if path == "/generate" and '"processor"' in str((body or {}).get("custom_logit_processor")):
            self.routed += 1
        if path == "/v1/models":
            return 200, {"data": [{"id": name} for name in self.models]}
        if path == "/remote_instance_transfer_engine_info":
            return self.open_routes
        payload = body.get("custom_logit_processor") or ""
        if "thinking_budget" in payload:
            return self.thought()
        if "metadata" in body or "params" in payload:
            return self.forced(path, drops=self.drops_routed)
        if not payload:
            return 200, {"text": "x"}
        if self.disabled:
            return 400, {"error": "Custom logit processor is not enabled. Use --enable-..."}
        self.usual += path in USUAL
        params = body.get("custom_params") or body["sampling_params"]["custom_params"]
        if "token_ids" in params:
            return (200, {"text": "x"}) if self.unpickles else (400, {"error": REFUSED})
        return self.forced(path, drops=self.drops)

    def thought(self):
        if not self.pair:
            return 400, {"error": "expected one known pair of thinking delimiters in the"}
        report = {"thinking": [{"tokens": 3, "ended": self.ended}]}
        return 200, {"text": "", "meta_info": {"sglang_lp": report}}

    def forced(self, path, drops):
        text = "something" if path in drops else FORCED
        if path == "/v1/responses":
            return 200, {"output": [{"content": [{"text": text}]}]}
        if path == "/v1/messages":
            return 200, {"type": "message", "content": [{"type": "text", "text": text}]}
        if path == "/generate":
            return 200, {"text": text}
        if path == "/v1/completions":
            return 200, {"choices": [{"text": text}]}
        parsed = {"content": None, "reasoning_content": text}
        return 200, {"choices": [{"message": parsed}]}


@pytest.fixture
def asked(capsys):
    """Return a function that asks a server and returns the exit code and the lines."""
    running = ExitStack()

    def ask(*servers):
        urls = [serve(server) for server in servers]
        code = main(["doctor", *(part for url in urls for part in ("--url", url))])
        return code, capsys.readouterr().out.splitlines()

    def serve(server):
        def answer(asked):
            status, said = server.answer(asked.path, asked.body, asked.headers)
            headers = {}
            if server.policies:
                headers["x-sglang-lp-policy"] = server.policies[server.asked % len(server.policies)]
            if server.named:
                none = asked.path in server.drops
                headers["x-sglang-lp"] = "none" if none else server.named
            return Answered(status, said, headers)

        return running.enter_context(listening(answer)) + "/v1"

    with running:
        yield ask


def changed(**attributes):
    return type("Changed", (Guarded,), attributes)()


def test_a_guarded_server_passes(asked, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    server = Guarded()

    code, said = asked(server)

    assert (code, [line[:2] for line in said]) == (0, ["ok"] * 9)
    assert said[1] == "ok      policy: 0123456789ab"
    assert server.key == "Bearer k"
    # No endpoint needs the routed form of a server without a router.
    assert (server.usual, server.routed) == (2, 1)
    assert "routed" not in "".join(said)


@pytest.mark.parametrize(
    ("server", "place", "why"),
    [
        (changed(unpickles=True), 0, "something dropped the payload on the way"),
        (
            changed(drops=(CHAT,), drops_routed=(CHAT,)),
            4,
            "the server never saw the request's custom_logit_processor: a router or proxy dropped",
        ),
        (
            changed(drops=("/generate",), drops_routed=("/generate",), named=""),
            2,
            "not forced, and no header X-SGLang-LP: the server does not run sglang-lp",
        ),
        (changed(ended="model"), 7, "a budget of 0 did not end the open block"),
        (changed(models=()), 3, "/v1/models names no model: HTTP 200"),
        (changed(policies=()), 1, "no header X-SGLang-LP-Policy"),
        (changed(policies=("a", "b")), 1, "behind this URL decide differently: a, b; start them"),
        (changed(answer=lambda *_: (502, b"<html>")), 0, "got HTTP 502: '<html>'"),
        (changed(answer=lambda *_: (200, b"<html>")), 4, "no model: HTTP 200: '<html>'"),
        *(
            (changed(answer=lambda *_, said=said: (200, said)), 2, "expected an answer of SGLang")
            for said in (b"<html>", None, 5, [], ["choices"], {}, {"choices": 5}, {"choices": [5]})
        ),
        (changed(thought=lambda _self: (200, {"meta_info": []})), 7, "the answer has no report"),
        (changed(thought=lambda _self: (200, b"<html>")), 7, "the answer has no report"),
    ],
)
def test_what_is_wrong_fails_with_what_was_lost_where(asked, server, place, why):
    code, said = asked(server)

    assert code == 1
    assert said[place].startswith("FAILED")
    assert why in said[place]


def test_a_fleet_with_a_server_without_the_guard_gets_no_text_that_would_end_it(asked):
    guarded = changed(drops=("/generate",), drops_routed=("/generate",))
    server = changed(drops=("/generate",), drops_routed=("/generate",), policies=("a", ""))

    asked(guarded)
    code, said = asked(server)

    assert (guarded.routed, server.routed) == (2, 0)
    assert code == 1
    assert said[7] == "--      /generate thinking budget: not checked: the server is not guarded"


@pytest.mark.parametrize(
    ("server", "why", "remedies"),
    [
        (changed(disabled=True, named=""), "processors are off", [FLAG]),
        (changed(disabled=True, policies=()), "processors are off", [FLAG, INSTALL]),
        (changed(unpickles=True, policies=()), "the server is not guarded", [INSTALL]),
    ],
)
def test_a_server_that_runs_no_processors_is_told_once(asked, server, why, remedies):
    code, said = asked(server)

    assert code == 1
    assert said[0].startswith("FAILED  guard: ")
    assert [one for one in (FLAG, INSTALL) if one in said[0]] == remedies
    assert {line.partition(": ")[2] for line in said[1:8]} == {f"not checked: {why}"}
    assert [line[:2] for line in said[1:]] == [*["--"] * 7, "ok"]
    assert (server.usual, server.routed) == (0, 0)


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        ((404, {"detail": "Not Found"}), "no such endpoint here"),  # sglang-router has no messages
        ((400, {"message": "tokenizer.chat_template is not set and"}), "the served model has no"),
    ],
)
def test_an_endpoint_that_is_not_there_is_no_failure(asked, answered, why):
    def answer(server, path, body, headers):
        if path == "/v1/messages":
            return answered
        return Guarded.answer(server, path, body, headers)

    code, said = asked(changed(answer=answer))

    assert code == 0
    assert said[6].startswith(f"--      /v1/messages forced text: not checked: {why}")


def test_what_cannot_be_told_is_no_failure(asked):
    code, said = asked(changed(pair=False, named=""))

    assert code == 0
    assert said[7].startswith("--      /generate thinking budget: the served model's tokenizer")
    assert "the header X-SGLang-LP was lost on the way" in said[2]


def test_rules_of_the_operator_that_contradict_the_text_are_no_failure(asked):
    why = "no token is left at token 3: what this request asks for contradicts what this server's "
    refused = {"error": {"message": why + "operator decided; ask for something else"}}
    code, said = asked(changed(forced=lambda *_, **__: (400, refused)))

    assert code == 0
    assert [line[:2] for line in said] == ["ok", "ok", *["--"] * 5, "ok", "ok"]
    assert "its text contradicts what this server's operator decided" in said[2]


def test_what_is_lost_but_in_the_routed_form_is_told_and_no_failure(asked):
    code, said = asked(changed(drops=(CHAT,)))

    assert code == 0
    assert said[4].startswith(
        "ok      /v1/chat/completions forced text: comes back in the routed form"
    )
    assert "a router or proxy dropped it" in said[4]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((400, {"error": {"message": "Missing or invalid rank parameter"}}), "!!      administr"),
        ((404, {"detail": "Not Found"}), "--      administrators' routes: not checked: a router"),
        ((403, b""), "ok      administrators' routes: closed to clients"),
    ],
)
def test_administrators_routes_that_clients_may_ask_are_told_and_no_failure(asked, answer, said):
    code, lines = asked(changed(open_routes=answer))

    assert code == 0
    assert lines[-1].startswith(said)
    assert ("--admin-api-key" in lines[-1]) == said.startswith("!!")


def test_several_servers_are_compared(asked):
    code, said = asked(Guarded(), Guarded())
    assert code == 0
    assert said[-2:] == ["all of them:", "ok      the same policy: 0123456789ab"]

    code, said = asked(Guarded(), changed(policies=("another",)))
    assert code == 1
    assert said[-3] == (
        "FAILED  the same policy: the servers decide differently; start them with one policy"
    )
    assert [line.rpartition(": ")[2] for line in said[-2:]] == ["0123456789ab", "another"]


def test_nobody_there_is_told_once_and_no_url_is_wrong_usage(capsys):
    assert main(["doctor", "--url", "http://127.0.0.1:9"]) == 1
    guard, *others, _routes = capsys.readouterr().out.splitlines()
    assert guard == "FAILED  guard: /generate: no answer: '[Errno 111] Connection refused'"
    assert {line[:2] + line.partition(": ")[2] for line in others} == {
        "--not checked: the server does not answer"
    }
    assert main(["doctor", "--url", "127.0.0.1:30000"]) == 2
    assert (
        "doctor: --url: expected a URL, http://... or https://..., got" in capsys.readouterr().err
    )


@pytest.mark.parametrize("option", ["--policy", "--model", "--reasoning-parser"])
def test_an_option_for_this_environment_is_refused_with_a_server(capsys, option):
    assert main(["doctor", "--url", "http://127.0.0.1:9", option, "x"]) == 2
    assert f"doctor: {option}: expected none with --url" in capsys.readouterr().err


def test_the_odd_payload_is_a_harmless_class_of_sglangs_own():
    pytest.importorskip("sglang.srt")
    import pickle

    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    assert pickle.loads(server_checks._ODD_REFERENCE) is DisallowedTokensLogitsProcessor


def test_no_redirect_is_followed_with_the_key(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    keys = []

    def elsewhere(asked):
        keys.append(asked.headers.get("Authorization"))
        return Answered(200, {"text": "x"})

    with listening(elsewhere) as other:
        moved = {"Location": f"{other}/generate"}
        with listening(lambda _asked: Answered(307, b"", moved)) as url:
            assert main(["doctor", "--url", url]) == 1

    assert keys == []
    assert "got HTTP 307" in capsys.readouterr().out


def test_nothing_that_a_server_says_acts_on_the_terminal(asked):
    escape = "\x1b[2J\x9b2J"
    server = changed(policies=(escape,), named=escape, drops=("/generate",), ended=escape)
    _, lines = asked(server)

    assert not any(char in line for line in lines for char in "\x1b\x9b\r")
