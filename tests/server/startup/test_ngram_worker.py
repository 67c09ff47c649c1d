"""NGRAM's worker is taken hold of where SGLang chooses it."""

from types import SimpleNamespace

import numpy as np
import pytest

from sglang_lp.errors import Unsupported
from sglang_lp.server.startup import ngram_worker

NAMES = ("find", "draft_token_num")


class Worker:
    draft_token_num = 4

    def find(self, batch):
        return np.arange(4), np.eye(4, dtype=bool).flatten()


def chosen(worker, *, ngram):
    algorithm = SimpleNamespace(is_ngram=lambda: ngram)
    return ngram_worker.make_choose_worker(NAMES)(worker, algorithm, "server_args")


def test_forced_tokens_replace_what_the_ngram_worker_finds(monkeypatch):
    monkeypatch.setattr(ngram_worker, "foresee_trees", lambda trees, *given: (trees, *given))
    worker = chosen(Worker, ngram=True)()

    (token_ids, _), own, batch = worker.find("batch")
    assert token_ids.tolist() == [0, 1, 2, 3]
    assert own is worker
    assert batch == "batch"


def test_other_workers_stay_what_they_are():
    assert chosen(Worker, ngram=False) is Worker


def test_an_ngram_worker_that_finds_drafts_in_another_way_is_refused():
    class Other(Worker):
        def find(self, batches, more):
            """Return nothing."""

    with pytest.raises(Unsupported, match="takes batch, got one that differs in batch, batches, m"):
        chosen(Other, ngram=True)


def test_an_ngram_worker_that_lacks_something_is_refused_by_name():
    with pytest.raises(Unsupported, match="has find, draft_token_num, which this SGLang"):
        chosen(object, ngram=True)
