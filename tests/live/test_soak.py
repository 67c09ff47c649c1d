"""Some seconds of ``make soak`` on a server that the other tests start too."""

from __future__ import annotations

import pytest

from benchmarks.soak import run as soak
from support.servers.census import census
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900), on_servers("squeezed")]


def test_a_server_under_everything_at_once_answers_right_and_in_time(server):
    soak.warm(server, 2)
    _, without = soak.play(server, 6, with_processors=False)
    seen, steps = soak.play(server, 10, least=100)

    assert soak.problems(server, seen, steps, without) == []
    checks = soak.Checks(server.arguments["model_path"])
    wrong = [one for one in map(checks.wrong, seen.answers) if one is not None]
    assert wrong == []
    assert len(seen.answers) >= 100
    census(server, "after the soak")
