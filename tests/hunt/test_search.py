"""Half a minute of ``make hunt`` on one of its servers, with one seed."""

from __future__ import annotations

import pytest

from hunt.asking import Client
from hunt.canaries import canaries
from hunt.rules import INVARIANTS, TIMES, prepare
from hunt.searching import Search, Seen, told
from hunt.servers import KINDS, start

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SEED, SECONDS = 1, 25


def test_whatever_a_client_sends_the_promises_hold(tmp_path):
    kind, seen = KINDS["plain"], Seen()
    # Other tests run meanwhile, and take as long as they take.
    rules = [name for name in INVARIANTS if name not in TIMES]
    prepare()  # not in the time of the search
    with start(kind, tmp_path) as server, Client(server, canaries(kind)) as client:
        Search(kind, client, seen, SEED, tmp_path / "hunt-failures", rules).run(SECONDS)

    found = [told(finding) + finding.script.read_text() for finding in seen.findings.values()]
    assert found == [], f"seed {SEED} of make hunt"
    requests, refused = seen.requests["server"]["plain"], seen.refused["server"]["plain"]
    assert requests > 0
    assert refused < 0.5 * requests + 10  # a busy machine asks few
