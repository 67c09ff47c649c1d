"""Byte tokens under a decoder with byte fallback, compared with that decoder."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.text.byte_runs import BROKEN, NO_RUNS
from sglang_lp.text.vocabulary import byte_runs_of
from support.models.vocabularies import byte_fallback, byte_level

TOKENIZER = byte_fallback(["a", "é", "▁"])
RUNS = byte_runs_of(TOKENIZER)
#: The end, which has no text; whole characters; the bytes of some, and of none.
SOME = [0, 257, 258, 259, *(1 + byte for byte in "ñ😀a".encode() + b"\xc3\xff")]

some_tokens = st.lists(st.sampled_from(SOME), max_size=12)


@given(some_tokens)
def test_what_is_whole_comes_out_and_what_is_broken_does_not(token_ids):
    said = reduce(RUNS.joined, token_ids, b"")
    if RUNS.unsettled(said) != BROKEN and RUNS.unsettled(said):
        said += BROKEN  # the end breaks it
    decoded = TOKENIZER.decode(token_ids)

    assert (BROKEN in said) == ("\ufffd" in decoded)
    assert said.rpartition(BROKEN)[2].decode() == decoded.rpartition("\ufffd")[2]


@given(some_tokens)
def test_the_last_bytes_are_enough_to_go_on_from(token_ids):
    whole = last = b""
    for token_id in token_ids:
        whole = RUNS.joined(whole, token_id)
        last = RUNS.joined(last, token_id)[-3:]
        assert whole.endswith(last)
        assert RUNS.unsettled(whole) == RUNS.unsettled(last)


@given(some_tokens)
def test_an_output_says_how_its_run_stands_and_what_would_break_it(token_ids):
    def standing(tokens):
        return RUNS.unsettled(reduce(RUNS.joined, tokens, b""))

    assert RUNS.left_open(token_ids) == standing(token_ids)
    assert [*RUNS.breaking(token_ids)] == [
        token_id for token_id in range(1, 257) if standing([*token_ids, token_id])
    ]


def test_a_run_too_long_to_be_read_back_counts_as_broken():
    letter, line = 257, 1 + 0x0A

    assert RUNS.left_open([letter, *[line] * 255]) == b""
    assert RUNS.left_open([letter, *[line] * 256]) == BROKEN
    assert RUNS.left_open([letter] * 300) == b""


@given(some_tokens)
def test_bytes_may_not_follow_a_text_that_they_can_take_back(token_ids):
    text = TOKENIZER.decode(token_ids)
    takes_back = not TOKENIZER.decode([*token_ids, 256]).startswith(text)

    if "\ufffd" not in text:
        assert bool(RUNS.corrupting(token_ids)) == takes_back


def test_tokens_that_end_no_run_are_those_of_bytes_and_those_without_text():
    assert [*RUNS.leaving_open(300)] == [*range(257)]
    assert [*RUNS.leaving_open(9)] == [*range(9)]


def test_other_vocabularies_have_none():
    assert not byte_runs_of(byte_level(["a cat"], 260)).ids
    assert byte_runs_of(None) is byte_runs_of(object()) is NO_RUNS
