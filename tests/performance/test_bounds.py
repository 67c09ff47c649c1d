from array import array
from collections import Counter

import pytest
import torch

from benchmarks import bounds
from benchmarks.bounds_cases import Dear
from benchmarks.bounds_run import Server


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bans(token_ids, **options):
    def few():
        return array("q", [1, 2, 3])

    name = "DisallowedTokensLogitsProcessor"
    return Dear("bans", name, {"token_ids": token_ids}, few, few, steps=3, **options)


@pytest.fixture
def arrivals(monkeypatch):
    """Count what arrives in each process: equal requests take next to no time there."""
    seen = Counter()
    for name in ("admit", "receive"):
        real = getattr(Server, name)

        def counted(self, *args, name=name, real=real):
            seen[name] += 1
            return real(self, *args)

        monkeypatch.setattr(Server, name, counted)
    return seen


def test_the_rows_of_a_request_are_measured_together(arrivals):
    many = bounds.measure(bans([*range(20_000)], copies=8))

    assert many["rows"] == 8
    assert many["steps"] == 3
    assert many["received_ms"] > 0
    assert arrivals["receive"] % 8 == 0


def test_each_text_is_admitted_by_itself_and_copies_are_not(arrivals):
    bounds.measure(bans([*range(20_000)], copies=8))
    copies = arrivals["admit"] / arrivals["receive"]
    arrivals.clear()
    bounds.measure(bans([*range(20_000)], copies=8, texts=True))

    assert copies == 1 / 8
    assert arrivals["admit"] == arrivals["receive"]


def test_a_request_that_is_refused_is_stored_with_the_reason():
    assert "151936" in bounds.measure(bans([151_936]))["refused"]
