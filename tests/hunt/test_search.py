"""Less than a minute of ``make hunt`` on one of its servers."""

from __future__ import annotations

import pytest

from benchmarks.hunt.asking import Client
from benchmarks.hunt.canaries import canaries
from benchmarks.hunt.searching import Search, Seen, told
from benchmarks.hunt.servers import KINDS, start

pytestmark = [pytest.mark.engine, pytest.mark.hunt, pytest.mark.timeout(900)]


def test_whatever_a_client_sends_the_promises_hold(tmp_path):
    kind, seen = KINDS["plain"], Seen()
    scripts = tmp_path / "hunt-failures"
    with start(kind, tmp_path) as server, Client(server, canaries(kind)) as client:
        Search(kind, client, seen, 0, scripts).run(45)

    assert [told(finding) for finding in seen.findings.values()] == []
    requests, refused = seen.requests["server"]["plain"], seen.refused["server"]["plain"]
    assert requests > 50
    assert refused < 0.4 * requests
