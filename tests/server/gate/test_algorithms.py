"""With which algorithms for speculative decoding a server takes processors."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_lp.errors import Unsupported
from sglang_lp.request import History
from sglang_lp.server.gate.algorithms import ALGORITHMS, Speculation

EXACT = [name for name, why in ALGORITHMS.items() if why is None]
REFUSED = [name for name, why in ALGORITHMS.items() if why is not None]


def served(algorithm, single=1.0, acc=1.0):
    return Speculation.of(
        SimpleNamespace(
            speculative_algorithm=algorithm,
            speculative_accept_threshold_single=single,
            speculative_accept_threshold_acc=acc,
        )
    )


def check(speculation, needs=History.TOKENS, *, sampled=True, **attributes):
    given = {"needs": needs, "reads_request": False, "can_fork": True}
    processor = SimpleNamespace(**given | attributes)
    speculation.check("A processor", processor, sampled=sampled)


def test_a_server_without_speculation_has_none():
    assert served(None) is None


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("needs", History)
def test_processors_are_taken_where_they_are_exact(name, needs):
    check(served(name), needs)
    check(served(name.lower()), needs)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("needs", [History.POSITION, History.TOKENS])
def test_others_are_refused_with_the_algorithm_and_the_reason(name, needs):
    with pytest.raises(Unsupported) as refusal:
        check(served(name), needs)
    message = str(refusal.value)
    assert "A processor" in message
    assert f"({name})" in message
    assert ALGORITHMS[name] in message


def test_an_algorithm_that_nobody_knows_is_refused():
    with pytest.raises(Unsupported, match=r"\(SOMETHING\).*does not know it"):
        check(served("something"), History.NONE)


@pytest.mark.parametrize("needs", History)
def test_a_server_that_pretends_to_accept_takes_none(monkeypatch, needs):
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "2.5")
    with pytest.raises(Unsupported, match="SGLANG_SIMULATE_ACC_LEN"):
        check(served("EAGLE"), needs, sampled=False)


@pytest.mark.parametrize("thresholds", [{"single": 0.9}, {"acc": 0.5}])
def test_a_server_that_accepts_unlikely_drafts_takes_greedy_requests_only(thresholds):
    speculation = served("EAGLE", **thresholds)
    check(speculation, sampled=False)
    option = next(iter(thresholds))
    with pytest.raises(Unsupported, match=f"--speculative-accept-threshold-{option} 0"):
        check(speculation, sampled=True)


def test_thresholds_mean_nothing_where_sglang_does_not_read_them():
    check(served("DSPARK", single=0.5, acc=0.5), sampled=True)


def test_processors_that_read_sglangs_request_are_refused():
    with pytest.raises(Unsupported, match="computes on whole rows"):
        check(served("EAGLE"), History.NONE, reads_request=True)


def test_processors_that_cannot_be_forked_are_refused_if_they_follow_the_tokens():
    check(served("EAGLE"), History.NONE, can_fork=False)
    with pytest.raises(Unsupported, match="can_fork"):
        check(served("EAGLE"), can_fork=False)


def test_the_table_names_every_algorithm_of_sglang():
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import _RESERVED_ALIASES

    known = {algorithm.name for algorithm in SpeculativeAlgorithm} - {"NONE"}
    assert {*known, *_RESERVED_ALIASES} <= {*ALGORITHMS}


def test_the_table_of_the_documents_is_the_one_that_servers_follow():
    page = (Path(__file__).parents[3] / "docs" / "history.md").read_text()
    rows = re.findall(
        r"^\| `([A-Z0-9_]+)` \| (exact|refused) \| (?:([^|]+) )?\|$", page, re.MULTILINE
    )

    assert rows == [
        (name, "exact" if why is None else "refused", why or "") for name, why in ALGORITHMS.items()
    ]
