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
    flags = SimpleNamespace(**{"reads_request": False, "can_fork": True} | attributes)
    serving = SimpleNamespace(in_row=SimpleNamespace(needs=needs), flags=flags)
    speculation.check("A processor", serving, sampled=sampled)


def refusal(why, algorithm="EAGLE"):
    """Return the whole message, as a pattern."""
    return (
        re.escape(
            "custom_logit_processor: expected one that is exact with this server's speculative "
            f"decoding ({algorithm}), got A processor: {why}; "
            "send the request to a server without it"
        )
        + "$"
    )


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
    with pytest.raises(Unsupported, match=refusal(ALGORITHMS[name], name)):
        check(served(name), needs)


def test_an_algorithm_that_nobody_knows_is_refused():
    with pytest.raises(
        Unsupported, match=refusal("this version of sglang-lp does not know it", "SOMETHING")
    ):
        check(served("something"), History.NONE)


def test_a_server_that_does_not_pretend_takes_processors(monkeypatch):
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "0")
    check(served("EAGLE"))


@pytest.mark.parametrize("accepted", ["0.5", "2.5"])
@pytest.mark.parametrize("needs", History)
def test_a_server_that_pretends_to_accept_takes_none(monkeypatch, needs, accepted):
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", accepted)
    why = "it was started with SGLANG_SIMULATE_ACC_LEN, which accepts drafted tokens unseen"
    with pytest.raises(Unsupported, match=refusal(why)):
        check(served("EAGLE"), needs, sampled=False)


@pytest.mark.parametrize("thresholds", [{"single": 0.9}, {"acc": 0.5}])
def test_a_server_that_accepts_unlikely_drafts_takes_greedy_requests_only(thresholds):
    speculation = served("EAGLE", **thresholds)
    check(speculation, sampled=False)
    ((option, value),) = thresholds.items()
    why = (
        f"it was started with --speculative-accept-threshold-{option} {value}, which accepts "
        "drafted tokens that the edited distribution does not give; expected 1.0, or a request "
        "with temperature 0"
    )
    with pytest.raises(Unsupported, match=refusal(why)):
        check(speculation, sampled=True)


# SGLang may drop the options.
def test_a_server_without_thresholds_accepts_no_unlikely_drafts():
    found = Speculation.of(SimpleNamespace(speculative_algorithm="EAGLE"))

    assert (found.lossy, found.is_exact) == (None, True)


def test_thresholds_mean_nothing_where_sglang_does_not_read_them():
    check(served("DSPARK", single=0.5, acc=0.5), sampled=True)


def test_processors_that_read_sglangs_request_are_refused():
    why = "it computes on whole rows, without a view of the drafted tokens"
    with pytest.raises(Unsupported, match=refusal(why)):
        check(served("EAGLE"), History.NONE, reads_request=True)


def test_processors_that_cannot_be_forked_are_refused_if_they_follow_the_tokens():
    check(served("EAGLE"), History.NONE, can_fork=False)
    why = "its state cannot be forked, which following a draft takes (can_fork)"
    with pytest.raises(Unsupported, match=refusal(why)):
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
