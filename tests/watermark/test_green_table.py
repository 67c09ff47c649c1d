"""Green lists on the device: the latest used stay, however many come in one step."""

import random

import pytest
import torch

from sglang_lp.errors import RequestError
from sglang_lp.watermark import green_lists
from sglang_lp.watermark.keys import GreenKey
from sglang_lp.watermark.marks import Mark, Sampling
from sglang_lp.watermark.reading import scheme_of
from support.watermarks import GREEN

VOCAB = 300


def keep(numbers, _device):
    return numbers


def test_a_list_that_could_not_be_sent_is_made_again():
    scheme, logits = scheme_of(GreenKey(**GREEN)), torch.zeros(1, VOCAB)
    marks = [Mark(scheme, (7,), Sampling())]

    def fail(_numbers, _device):
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        scheme.pack([0], marks, logits, fail)
    scheme.apply(logits, torch.from_numpy(scheme.pack([0], marks, logits, keep)), 1)

    green = logits[0].nonzero().flatten().tolist()
    assert green == sorted(scheme.green([7], range(VOCAB), VOCAB))


def test_a_key_without_a_green_token_tests_nothing():
    scheme = scheme_of(GreenKey(**{**GREEN, "greenlist_ratio": 1e-6}))
    with pytest.raises(RequestError, match="greenlist_ratio"):
        scheme.detect([1, 2, 3], VOCAB)


@pytest.mark.parametrize("places", [None, 8])
def test_every_row_gets_its_own_list_whatever_was_there_before(monkeypatch, places):
    if places:
        monkeypatch.setattr(green_lists, "MAX_TABLE_BYTES", places * 40)
    scheme, rng = scheme_of(GreenKey(**GREEN)), random.Random(0)
    made = []
    make = scheme._list
    scheme._list = lambda token_id, vocab: made.append(token_id) or make(token_id, vocab)

    for _ in range(60):
        tokens = [rng.randrange(40) for _ in range(rng.randint(1, 8))]
        logits = torch.randn(len(tokens), VOCAB)
        expected = logits.clone()
        for row, token in zip(expected, tokens, strict=True):
            row[scheme.green([token], range(VOCAB), VOCAB)] += scheme.bias
        marks = [Mark(scheme, (token,), Sampling()) for token in tokens]
        numbers = torch.from_numpy(scheme.pack(range(len(tokens)), marks, logits, keep))
        scheme.apply(logits, numbers, len(tokens))
        assert torch.equal(logits, expected)

    assert (len(made) == len({*made})) == (places is None)  # made once, where there is room
