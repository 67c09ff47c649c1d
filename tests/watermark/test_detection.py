"""The tests for a watermark report as many texts without one as they say."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.errors import RequestError
from sglang_lp.watermark.detection import binomial_tail, normal_tail
from sglang_lp.watermark.keys import GreenKey
from sglang_lp.watermark.reading import scheme_of
from support.watermarks import GREEN_SCHEME, SELF_SCHEME, TOURNAMENT_SCHEME

VOCAB, TEXTS = 500, 400
SCHEMES = [GREEN_SCHEME, SELF_SCHEME, TOURNAMENT_SCHEME]


def text(seed, length=60):
    """Return tokens whose frequencies fall off as those of words do."""
    rng = random.Random(seed)
    return [min(int(rng.paretovariate(0.6)), VOCAB - 1) for _ in range(length)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=["lefthash", "selfhash", "synthid"])
def test_as_many_texts_without_a_watermark_are_below_a_p_value_as_it_says(scheme):
    found = [scheme.detect(text(seed), VOCAB).p_value for seed in range(TEXTS)]

    for limit in (0.5, 0.1, 0.01):
        most = limit * TEXTS + 4 * math.sqrt(limit * TEXTS)
        assert sum(p_value <= limit for p_value in found) <= most
    assert 0.35 < statistics.mean(found) < 0.65


@given(st.integers(1, 40), st.integers(0, 40), st.floats(0.05, 0.95))
def test_a_binomial_tail_is_the_sum_of_its_terms(trials, successes, probability):
    expected = sum(
        math.comb(trials, n) * probability**n * (1 - probability) ** (trials - n)
        for n in range(successes, trials + 1)
    )
    assert binomial_tail(successes, trials, probability) == pytest.approx(expected, rel=1e-9)


def test_a_normal_tail_is_that_of_python():
    for z in (-3.0, 0.0, 1.0, 4.0):
        expected = 1 - statistics.NormalDist().cdf(z)
        assert normal_tail(z) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tokens", [[], [1], [1, 2]])
def test_a_text_that_is_too_short_says_nothing(scheme, tokens):
    if scheme is GREEN_SCHEME and len(tokens) == 2:
        tokens = tokens[:1]
    found = scheme.detect(tokens, VOCAB)

    assert (found.scored, found.p_value) == (0, 1.0)


def test_repeating_a_text_is_no_more_evidence():
    once = text(1)
    for scheme in SCHEMES:
        more = scheme.detect(once * 20, VOCAB)
        assert more.scored <= scheme.detect(once, VOCAB).scored + 10


def test_green_lists_need_the_size_of_the_vocabulary():
    with pytest.raises(RequestError, match="expected the number of logits"):
        GREEN_SCHEME.detect([1, 2], None)
    with pytest.raises(RequestError, match="expected ids from 0 to 9"):
        GREEN_SCHEME.detect([1, 10], 10)


def test_another_key_is_another_watermark():
    other = scheme_of(GreenKey(hashing_key=99))
    scores = {one.detect(text(3), VOCAB).score for one in (GREEN_SCHEME, other)}

    assert len(scores) == 2
