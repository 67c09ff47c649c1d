"""Requests of two tokenizer workers with one id get their own texts, and end nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_lp.server.front.decoded_apart import decode_apart


class Detokenizer:
    """SGLang's, as far as it has a state for each id."""

    def __init__(self):
        self.seen = []

    def decode(self, recv_obj):
        self.seen.append([*recv_obj.rids])
        return [rid.upper() for rid in recv_obj.rids]


# `_decode_batch_token_id_output` removes the state of a request that ends, and raises for another
# with its id.
def test_two_workers_have_states_of_their_own():
    detokenizer = Detokenizer()
    batch = SimpleNamespace(rids=["a", "a", "b"], http_worker_ipcs=["ipc://1", "ipc://2", None])
    decode_apart(Detokenizer.decode, detokenizer, batch)

    (seen,) = detokenizer.seen
    assert len({*seen}) == 3
    assert batch.rids == ["a", "a", "b"]
    decode_apart(Detokenizer.decode, detokenizer, batch)
    assert detokenizer.seen[1] == seen


@pytest.mark.parametrize("workers", [None, [], [None]])
def test_one_worker_needs_no_other_ids(workers):
    detokenizer = Detokenizer()
    batch = SimpleNamespace(rids=["a"], http_worker_ipcs=workers)

    assert decode_apart(Detokenizer.decode, detokenizer, batch) == ["A"]
    assert detokenizer.seen == [["a"]]


def test_the_ids_stay_if_sglang_raises():
    def failing(_detokenizer, _batch):
        raise KeyError("a")

    batch = SimpleNamespace(rids=["a"], http_worker_ipcs=["ipc://1"])
    with pytest.raises(KeyError):
        decode_apart(failing, None, batch)
    assert batch.rids == ["a"]
