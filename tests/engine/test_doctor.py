"""``sglang-lp doctor --url`` on real servers: guarded, deciding, and stock."""

import pytest

from sglang_lp.cli import main
from support.servers.configurations import on_servers

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    on_servers("default", "decided", "reasoning", "stock"),
]


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
