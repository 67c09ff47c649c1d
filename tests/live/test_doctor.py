"""``sglang-lp doctor --url`` on real servers: guarded, deciding, and stock."""

import json

import pytest

from sglang_lp.cli import main
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@on_servers("default", "decided", "reasoning", "stock")
def test_the_doctor_tells_a_guarded_server_from_a_stock_one(server, capsys, request):
    guarded = "stock" not in request.node.callspec.id

    code = main(["doctor", "--url", server.url + "/v1/"])
    said = capsys.readouterr().out.splitlines()

    verdicts = [line.split()[0] for line in said]
    if guarded:
        assert code == 0, said
        # The tiny model has no thinking delimiters, and the parser of one server names some.
        parsed = "reasoning" in request.node.callspec.id
        # No server has a key of its administrators.
        assert verdicts == [*["ok"] * 7, "ok" if parsed else "--", "!!"]
        assert "routed" not in "".join(said)
    else:
        assert code == 1
        assert said[0].startswith("FAILED  guard: the server took a payload")
        assert verdicts == ["FAILED", *["--"] * 7, "!!"]
    assert server.is_healthy()


@on_servers("reasoning")
def test_the_matrix_says_what_comes_for_every_combination(server, capsys):
    code = main(["doctor", "--url", server.url, "--matrix", "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert code == 0, [line for line in lines if not line["ok"] and line["fields"] == "toolkit"]
    for line in lines:
        called = line["tools"] in {"required", "named", "loose"}
        if called and line["format"] != "none":  # SGLang takes one of them
            assert line["came"] == "refused"
        elif line["fields"] == "toolkit":
            expected = "document" if line["format"] != "none" else "call" if called else "text"
            assert line["came"].startswith(expected), line
            assert called or line["format"] == "none" or line["finish"] == "stop"
    assert server.is_healthy()
