from array import array

import pytest
import torch

from benchmarks import bounds
from benchmarks.bounds_cases import Dear


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


def test_the_rows_of_a_request_are_measured_together():
    alone, many = (bounds.measure(bans([*range(20_000)], copies=rows)) for rows in (1, 8))

    assert (alone["rows"], many["rows"]) == (1, 8)
    assert many["received_ms"] > 4 * alone["received_ms"] > 0
    assert many["steps"] == 3


def test_each_text_is_admitted_by_itself_and_copies_are_not():
    texts, copies = (
        bounds.measure(bans([*range(20_000)], copies=8, texts=texts)) for texts in (True, False)
    )

    assert texts["admitted_ms"] > 4 * copies["admitted_ms"] > 0


def test_a_request_that_is_refused_is_stored_with_the_reason():
    assert "151936" in bounds.measure(bans([151_936]))["refused"]
