"""The first cases of ``make hunt`` on one of its servers: the same at every run."""

from __future__ import annotations

import pytest

from hunt.rules import INVARIANTS, TIMES, prepare
from hunt.searching import Search, Seen, told
from hunt.servers import KINDS
from hunt.serving import Served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SEED, CASES = 1, 80


def test_whatever_a_client_sends_the_promises_hold(tmp_path):
    kind, seen = KINDS["reasoning"], Seen()
    # Other tests run meanwhile, and take as long as they take.
    rules = [name for name in INVARIANTS if name not in TIMES]
    prepare()  # not in the time of the search
    with Served(kind, tmp_path) as served:
        Search(served, seen, SEED, tmp_path / "hunt-failures", rules).run(most=CASES)

    found = [told(finding) + finding.script.read_text() for finding in seen.findings.values()]
    assert found == [], f"seed {SEED} of make hunt"
    asked, refused = (sum(of["processor"].values()) for of in (seen.requests, seen.refused))
    assert refused < 0.5 * asked + 10  # a hunt of refusals finds nothing
