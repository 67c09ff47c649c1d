"""Questions about the likeliest tokens, answered for all rows of a batch at once."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.apply import reading
from sglang_lp._engine.apply.reading import Logits, Reading

#: Few values, so that many tie.
LOGIT = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0, math.nan])


def asked(logits, index):
    request = Reading()
    request.open(logits, index)
    return request


def is_among(row, ids, count):
    """Say the same by counting."""
    best = max(row[i] for i in ids)
    if any(map(math.isnan, row)) or best == -math.inf:
        return False
    return sum(value > best for value in row) < count


@given(st.data())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_read_at_once_answer_as_rows_that_are_read_one_by_one(dtype, data):
    rows, vocab = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    row = st.lists(LOGIT, min_size=vocab, max_size=vocab)
    values = data.draw(st.lists(row, min_size=rows, max_size=rows))
    ids = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=80))
    count = data.draw(st.integers(1, vocab + 2))
    tensor = torch.tensor(values, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_MOST", data.draw(st.integers(1, vocab)))
        at_once = Logits(tensor, at_once=True)
        for index, logits in enumerate(values):
            request = asked(at_once, index)
            assert bool(request.is_among_top(ids, count)) == is_among(logits, ids, count)
            if not any(map(math.isnan, logits)):
                alone = asked(Logits(tensor, at_once=False), index).top(count)
                found = request.top(count)
                assert [logits[i] for i in found] == [logits[i] for i in alone]
                assert len({*found}) == len(found)


def test_what_is_read_of_one_row_is_read_of_all():
    tensor = torch.randn(4, 100)
    logits = Logits(tensor, at_once=True)
    first = asked(logits, 0).top(3)
    tensor.zero_()  # what is asked from now on is known already

    assert first
    assert len({*asked(logits, 1).top(64)}) == 64
    assert asked(logits, 3).is_among_top(asked(logits, 3).top(2), 2)
