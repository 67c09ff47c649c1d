from array import array

import pytest
import torch

from benchmarks.bounds import measure as bounds
from benchmarks.bounds.cases import Dear, dearest
from benchmarks.bounds.run import Run, Server
from sglang_lp import builtins


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
    """Record arrivals in each process, where equal requests take next to no time."""
    seen = {"admit": [], "receive": 0}
    admit, receive = Server.admit, Server.receive

    def admitted(self, processor, texts, copies, prompt):
        seen["admit"].append((len(texts), copies))
        return admit(self, processor, texts, copies, prompt)

    def received(self, request):
        seen["receive"] += 1
        return receive(self, request)

    monkeypatch.setattr(Server, "admit", admitted)
    monkeypatch.setattr(Server, "receive", received)
    return seen


def test_the_rows_of_a_request_are_measured_together(arrivals):
    many = bounds.measure(bans([*range(20_000)], copies=8))

    assert many["rows"] == 8
    assert many["received_ms"] > 0
    assert arrivals == {"admit": [(1, 8)] * 2, "receive": 16}  # once to warm up


def test_the_texts_of_a_request_are_admitted_as_one_list(arrivals):
    bounds.measure(bans([*range(20_000)], copies=8, texts=True))

    assert arrivals == {"admit": [(8, 1)] * 2, "receive": 16}


def test_each_text_may_have_parameters_of_its_own():
    dear = bans([], copies=2, texts=True, others=lambda copy: {"token_ids": [copy]})

    custom_params = [
        request.sampling_params.custom_params for request in Run(Server(), dear).requests
    ]
    assert [params["token_ids"] for params in custom_params] == [[0], [1]]


def test_a_request_that_is_refused_is_stored_with_the_reason():
    assert "151936" in bounds.measure(bans([151_936]))["refused"]


def test_copies_of_a_long_prompt_are_as_many_as_are_accepted():
    (refused,) = (dear for dear in dearest() if dear.key == "ngram-3-random-x129")
    assert "send several requests" in bounds.measure(refused)["refused"]


def test_copies_that_list_too_much_together_are_refused():
    assert "n)" in bounds.measure(bans([*range(65_536)], copies=9))["refused"]


def test_every_built_in_has_a_request_that_is_measured():
    measured = {dear.processor for dear in dearest()}
    # The families of the thinking budget differ only in their ids.
    every = {name: getattr(builtins, name) for name in builtins.__all__}
    names = [name for name, one in every.items() if getattr(one, "family", None) is None]

    assert [name for name in names if name not in measured] == []
