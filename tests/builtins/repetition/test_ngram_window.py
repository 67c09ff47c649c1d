"""The n-gram index against a search through the whole window."""

import random
import tracemalloc
from array import array
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from sglang_lp.builtins import DeepseekOCRNoRepeatNGramLogitProcessor
from sglang_lp.builtins.repetition import ngram_index
from sglang_lp.builtins.repetition.ngram_window import CountedTokens, Window, WindowState
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import prepare
from sglang_lp.request import Request
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest
from support.examples import examples
from support.oracles.definitions import ngram_bans

VOCAB = 50
PAD = 1_000_000


def banned_by(processor, custom_params):
    logits = torch.zeros(1, VOCAB)
    processor(logits, [custom_params])
    return {i for i, x in enumerate(logits[0].tolist()) if x != 0.0}


def check_decode(prompt, output, params):
    """Compare every step of a decode, and a request that starts in its middle, with the search."""
    size, window = params["ngram_size"], params["window_size"]
    request = FakeRequest(prompt)
    custom_params = request.custom_params(params)
    processor = DeepseekOCRNoRepeatNGramLogitProcessor()
    for position in range(len(output) + 1):
        tokens = [*prompt, *output[:position]]
        expected = ngram_bans(tokens, size, window, params.get("whitelist_token_ids", ()))
        expected = {i for i in expected if i < VOCAB}
        assert banned_by(processor, custom_params) == expected, f"step {position} of {tokens}"
        if position % 7 == 3:
            fresh = FakeRequest(prompt, output[:position]).custom_params(params)
            assert banned_by(DeepseekOCRNoRepeatNGramLogitProcessor(), fresh) == expected
        if position < len(output):
            request.append(output[position])


@st.composite
def sizes(draw):
    size = draw(st.integers(1, 9))
    return size, size + draw(st.sampled_from([0, 0, 1, 2, 5, 20, 1000]))


@examples(6)
@given(
    sizes=sizes(),
    # Few tokens, so that n-grams do come again.
    alphabet=st.lists(
        st.sampled_from([0, 1, 2, 3, VOCAB - 1, PAD, PAD + 7]), min_size=1, max_size=4
    ),
    picks=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    split=st.floats(0, 1),
    whitelist=st.lists(st.integers(0, 3), max_size=2),
)
def test_bans_what_a_search_finds(sizes, alphabet, picks, split, whitelist):
    tokens = [alphabet[i % len(alphabet)] for i in picks]
    at = max(1, round(split * len(tokens)))
    output = [i for i in tokens[at:] if i < VOCAB]
    params = {"ngram_size": sizes[0], "window_size": sizes[1], "whitelist_token_ids": whitelist}

    check_decode(tokens[:at], output, params)


def test_nothing_has_followed_a_token_that_the_prompt_lacks():
    # The followers of the frequent token 9 are cached; a lookup of 6 must not find that entry.
    prompt = [token for number in range(90) for token in (9, number % 5)]

    check_decode(prompt, [9, 0, 9, 6, 0, 6, 9], {"ngram_size": 2, "window_size": 1000})


@examples(1.5)
@given(
    size=st.integers(1, 3),
    more=st.integers(0, 40),
    tokens=st.lists(st.sampled_from([0, 1, 2, 3, 4, PAD]), min_size=2, max_size=60),
    split=st.floats(0.3, 1),
    whitelist=st.lists(st.integers(0, 4), max_size=2),
)
def test_bans_what_a_search_finds_among_many_followers(size, more, tokens, split, whitelist):
    at = max(1, round(split * len(tokens)))
    output = [i for i in tokens[at:] if i < VOCAB]
    params = {"ngram_size": size, "window_size": size + more, "whitelist_token_ids": whitelist}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_index, "_MANY", 1)
        patch.setattr(ngram_index, "_STRIDE", 4)
        check_decode(tokens[:at], output, params)


@examples(1.5)
@given(
    sizes=sizes(),
    unit=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    noise=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 5)), max_size=4),
)
def test_bans_what_a_search_finds_in_a_loop_with_slips(sizes, unit, noise):
    tokens = (unit * 80)[:80]
    for at, token_id in noise:
        tokens.insert(at, token_id)

    check_decode(tokens[:5], tokens[5:], {"ngram_size": sizes[0], "window_size": sizes[1]})


@pytest.mark.parametrize(("size", "window"), [(30, 90), (20, 5000), (2, 400), (5, 5), (1, 7)])
def test_bans_what_a_search_finds_in_long_texts(size, window):
    rng = random.Random(size)
    phrases = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 50))] for _ in range(4)]
    tokens = [token_id for _ in range(40) for token_id in rng.choice(phrases)]

    check_decode(tokens[:300], tokens[300:900], {"ngram_size": size, "window_size": window})


@st.composite
def new_and_old(draw):
    """Text that is mostly new, so that a row sleeps, with parts of itself in between."""
    rng = random.Random(draw(st.integers(0, 99)))
    tokens = [rng.randrange(VOCAB) for _ in range(5)]
    for new, length, back in draw(
        st.lists(
            st.tuples(st.integers(0, 150), st.integers(0, 60), st.integers(1, 200)),
            min_size=1,
            max_size=4,
        )
    ):
        tokens += [rng.randrange(VOCAB) for _ in range(new)]
        at = max(0, len(tokens) - back)
        tokens += tokens[at : at + length]
    return tokens


#: As of the presets; small and large ones of which n-grams leave unentered, or have to be entered.
LONG_SIZES = st.sampled_from(
    [(30, 90), (9, 9), (12, 20), (35, 128), (10, 96), (20, 5000), (60, 70)]
)


@examples(0.6)
@given(sizes=LONG_SIZES, tokens=new_and_old(), split=st.floats(0, 0.5))
def test_bans_what_a_search_finds_after_a_long_sleep(sizes, tokens, split):
    at = max(1, round(split * len(tokens)))

    check_decode(tokens[:at], tokens[at:], {"ngram_size": sizes[0], "window_size": sizes[1]})


@examples(0.5)
@given(
    sizes=LONG_SIZES,
    tokens=new_and_old(),
    every=st.integers(1, 90),
    draft=st.integers(1, 40),
)
def test_drafts_of_a_sleeping_row_are_banned_what_a_search_finds(sizes, tokens, every, draft):
    size, window = sizes
    at = len(tokens) // 4
    ((processor, params, *_),) = prepare(
        DeepseekOCRNoRepeatNGramLogitProcessor(),
        {"ngram_size": size, "window_size": window},
        ServedModel(vocab_size=VOCAB),
    )
    request = Request(params)
    request.prompt_ids, request.output_ids = array("q", tokens[:at]), array("q")
    request.state = state = processor.start(request)

    def check():
        history = [*request.prompt_ids, *request.output_ids]
        banned = {i for ids in request.state.banned(request, VOCAB) for i in ids}
        assert banned == ngram_bans(history, size, window)

    def feed(token_id):
        request.output_ids.append(token_id)
        processor.advance(request, [token_id])

    for done, token_id in enumerate(tokens[at:], 1):
        feed(token_id)
        if done % every:
            continue
        length = len(request.output_ids)
        for drafted in (tokens[at + done :], tokens):  # what comes, and something else
            request.state = processor.fork(request)
            check()
            for guess in drafted[:draft]:
                feed(guess)
                check()
            del request.output_ids[length:]
            request.state = state
        check()


def test_a_row_of_new_text_sleeps_also_while_its_window_is_longer_than_its_history(monkeypatch):
    asked = []
    edit = DeepseekOCRNoRepeatNGramLogitProcessor.edit
    monkeypatch.setattr(
        DeepseekOCRNoRepeatNGramLogitProcessor,
        "edit",
        lambda self, request, edits: (asked.append(request.position), edit(self, request, edits)),
    )
    request = FakeRequest([*range(50)])
    custom_params = request.custom_params({"ngram_size": 30, "window_size": 10_000})
    processor = DeepseekOCRNoRepeatNGramLogitProcessor()
    for token_id in random.Random(1).choices(range(VOCAB), k=200):
        banned_by(processor, custom_params)
        request.append(token_id)

    assert len(asked) <= 200 / 20 + 1


def peak_bytes(text, params, *, generated=100):
    request = FakeRequest(text[:-generated])
    custom_params = request.custom_params(params)
    processor = DeepseekOCRNoRepeatNGramLogitProcessor()
    tracemalloc.start()
    for token_id in text[-generated:]:
        banned_by(processor, custom_params)
        request.append(token_id)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("text", [[*range(9000)], [7] * 9000, [*range(45)] * 200])
def test_the_index_of_a_prompt_is_as_large_as_the_window_whatever_the_size_of_the_ngrams(text):
    text = [token_id % VOCAB if token_id < VOCAB else PAD + token_id for token_id in text]
    text[-100:] = [token_id % VOCAB for token_id in text[-100:]]

    for size in (3, 30, 256):
        params = {"ngram_size": size, "window_size": 2**31 - 1}
        assert peak_bytes(text, params) < 600 * len(text), size


def test_longer_ngrams_than_256_are_refused():
    with pytest.raises(InvalidParameter, match=r"ngram_size.*256"):
        DeepseekOCRNoRepeatNGramLogitProcessor.parse_params(
            {"ngram_size": 257, "window_size": 1000}
        )


@pytest.mark.slow
def test_an_index_does_not_grow_with_the_history():
    params = {"ngram_size": 4, "window_size": 8}
    kept = 10_000 * 8 * 2  # the row's own history, twice while its array grows

    assert peak_bytes([7] * 10_001, params, generated=10_000) < 250_000 + kept


def test_copies_of_a_prompt_share_its_index():
    prompt = random.Random(1).choices(range(9), k=500)
    texts = [ngram_index.index_of(ids, 0, 2, 1) for ids in (prompt, [*prompt], prompt[1:])]

    assert texts[0] is texts[1] is not texts[2]


def test_a_rewritten_history_is_read_anew():
    params = {"ngram_size": 2, "window_size": 100}
    request = FakeRequest([1, 2, 3, 1])
    custom_params = request.custom_params(params)
    processor = DeepseekOCRNoRepeatNGramLogitProcessor()
    assert banned_by(processor, custom_params) == {2}

    request.output_ids = FakeRequest([], [5, 3]).output_ids

    assert banned_by(processor, custom_params) == {1}


@st.composite
def texts_that_repeat(draw):
    part = draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))
    return (part * 20)[: draw(st.integers(1, 80))] + draw(st.lists(st.integers(0, 3), max_size=6))


@given(st.one_of(texts_that_repeat(), st.lists(st.integers(0, 50), min_size=1)), st.data())
def test_what_followed_long_sequences_is_found_whatever_repeats(text, data):
    before = data.draw(st.integers(1, len(text)), "before")
    probe_size = data.draw(st.integers(1, before), "probe_size")
    found = ngram_index.index_of(array("q", text), 0, before, probe_size)
    for begin in range(len(text) - before + 1):
        wanted = text[begin : begin + before]
        places = {
            text[at + before]: at + before
            for at in range(len(text) - before)
            if text[at : at + before] == wanted
        }
        group = found.followers(array("q", wanted))
        assert ({} if group is None else dict(zip(group.ids, group.places, strict=True))) == places
        last = max(
            at + probe_size
            for at in range(len(text) - probe_size + 1)
            if text[at : at + probe_size] == wanted[:probe_size]
        )
        assert found.has_probe(array("q", wanted[:probe_size]), last)
        assert not found.has_probe(array("q", wanted[:probe_size]), last + 1)


@examples(1.5)
@given(text=texts_that_repeat(), data=st.data())
def test_sequences_that_a_number_takes_for_each_other_are_told_apart_by_another(text, data):
    text = [token % 2 for token in text]
    before = data.draw(st.integers(1, len(text)), "before")
    # By the first number, a fingerprint counts the tokens that are 1, without the bits that the
    # index takes. The second number tells more sequences apart.
    factors = iter([1, (1 << 63) + 1])
    draw = ngram_index.draw
    drawn = []

    def poorly(prompt, turn):
        drawn.append((1, factor) if (factor := next(factors, None)) else draw(prompt, turn))
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_index, "draw", poorly)
        found = ngram_index.NgramIndex(array("q", text).tobytes(), before, before)

    sequences = {tuple(text[at : at + before]) for at in range(len(text) - before + 1)}
    event(f"{len(drawn)} numbers")
    bits = (len(text) - before + 1).bit_length()
    assert (len(drawn) > 1) == (len({sum(one) >> bits for one in sequences}) < len(sequences))
    for wanted in sequences:
        places = {
            text[at + before]: at + before
            for at in range(len(text) - before)
            if tuple(text[at : at + before]) == wanted
        }
        group = found.followers(array("q", wanted))
        assert ({} if group is None else dict(zip(group.ids, group.places, strict=True))) == places


def test_tokens_whose_number_is_that_of_others_have_not_been_there():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_index, "draw", lambda *_: (1, 1))
        found = ngram_index.NgramIndex(array("q", [1 << 40, 1 << 41, 7]).tobytes(), 2, 1)

    assert found.followers(array("q", [1 << 40, 1 << 41])) is not None
    assert found.followers(array("q", [1 << 41, 1 << 40])) is None


def test_a_text_whose_sequences_would_have_equal_sums_for_every_odd_number_is_indexed():
    # The product of (x ** e - 1) ** 2 for e = 1, 2, 4 ... 64 is a multiple of 2 ** 64.
    difference = np.ones(1, dtype=np.int64)
    for exponent in (1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 64):
        difference = np.convolve(difference, [-1, *[0] * (exponent - 1), 1])
    ones, others = np.maximum(difference, 0), np.maximum(-difference, 0)
    assert sum(int(one) * 5**at for at, one in enumerate(difference)) % 2**64 == 0
    text = array("q", [*ones, 7, *others, 8])
    found = ngram_index.NgramIndex(text.tobytes(), 255, 85)

    assert found.followers(text[:255]).ids == [7]
    assert found.followers(text[256:511]).ids == [8]


@pytest.mark.parametrize("window_size", [90, 2_000])
def test_a_window_is_quiet_until_its_newest_new_probe_has_left_the_newest_tokens(window_size):
    prompt = [*range(60)]
    window = Window(30, window_size, frozenset(), prompt)
    output = array("q")
    for token_id in prompt[:40]:
        output.append(token_id)
        window.slide(CountedTokens(prompt, output), [token_id])
        banned = [*chain.from_iterable(window.banned(CountedTokens(prompt, output), VOCAB))]

        # The last new probe ends with the ninth token: it has a token of the end of the prompt.
        due = len(output) >= 9 + 30 - 10
        assert window.state is (WindowState.DUE if due else WindowState.QUIET)
        assert banned == ([prompt[len(output)]] if len(output) >= 29 else [])
        assert repr(window).startswith(f"<Window {window.state} after {60 + len(output)} tokens")

    output.append(99)
    window.slide(CountedTokens(prompt, output), [99])
    assert window.state is WindowState.QUIET
