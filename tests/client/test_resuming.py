"""A cut answer goes on as if it had not been cut, or is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.client import attach, resume
from sglang_lp.errors import RequestError
from support.examples import examples

LIMIT = "max_new_tokens"
BAN = attach("DisallowedTokensLogitsProcessor", token_ids=[3])


def answer(tokens=5, **more):
    return {"output_ids": [*range(10, 10 + tokens)], **more}


def asked(**sampling):
    return {"input_ids": [1, 2], "sampling_params": {LIMIT: 9, **sampling}}


def resumed(*answers, **sampling):
    return resume(BAN, asked(**sampling), *answers)["sampling_params"]


def test_the_tokens_so_far_are_behind_the_prompt():
    request = asked(top_k=5)
    body = resume(BAN, request, answer(2), answer(3))

    assert body == {
        "input_ids": [1, 2, 10, 11, 10, 11, 12],
        "custom_logit_processor": BAN.payload,
        "sampling_params": {
            "max_new_tokens": 4,
            "top_k": 5,
            "custom_params": {"token_ids": [3], "resumed_tokens": 5},
        },
    }
    assert request == asked(top_k=5)


def test_an_answer_without_a_limit_goes_on_without_one():
    assert resumed(answer(5), max_new_tokens=None)[LIMIT] is None


@pytest.mark.parametrize(("least", "left"), [(9, 4), (5, 0), (3, 0), (0, 0), (None, None)])
def test_the_tokens_so_far_count_for_the_minimum(least, left):
    assert resumed(answer(2), answer(3), min_new_tokens=least)["min_new_tokens"] == left


@pytest.mark.parametrize(
    ("request_", "got", "name"),
    [
        ({"text": "a"}, answer(), "input_ids"),
        ({"input_ids": [[1]]}, answer(), "input_ids"),
        *((asked(**{LIMIT: limit}), answer(), LIMIT) for limit in (5, "9", 9.0, True)),
        ({"input_ids": [1]}, answer(), LIMIT),
        ({"input_ids": [1], "sampling_params": {"top_k": 1}}, answer(1), LIMIT),
        *((asked(min_new_tokens=least), answer(), "min_new_tokens") for least in ("9", 1.5, True)),
        (asked(), {"text": "b"}, "output_ids"),
        (asked(stop="a"), answer(), "text"),
        (asked(stop=["a"]), answer(text=None), "text"),
        *((asked(stop=stop), answer(text="b"), "stop") for stop in (3, [3], {"a": 1})),
    ],
)
def test_a_request_that_cannot_be_resumed_is_refused(request_, got, name):
    with pytest.raises(RequestError, match=f"^{name}: expected"):
        resume(BAN, request_, got)


ANEW = {
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "repetition_penalty": 1.1,
    "json_schema": "{}",
    "regex": "a*",
    "ebnf": "root ::= 'a'",
    "structural_tag": "{}",
    "stop_regex": ["a+b"],
}


@pytest.mark.parametrize("name", ANEW)
def test_what_sglang_would_start_anew_is_refused(name):
    with pytest.raises(RequestError, match=f"^{name}: expected a request without it, got"):
        resumed(answer(), **{name: ANEW[name]})

    off = {"repetition_penalty": 1.0}.get(name, 0.0 if "penalty" in name else "")
    for value in (None, off):
        assert resumed(answer(), **{name: value})[name] == value


def test_a_request_without_tokens_so_far_is_sent_as_it_was():
    for request in ({"input_ids": [1]}, asked(stop="ab", min_new_tokens=9, **ANEW)):
        sent = resume(BAN, request, answer(0))["sampling_params"]
        assert sent.pop("custom_params") == {"token_ids": [3], "resumed_tokens": 0}
        assert sent == request.get("sampling_params", {})


LETTERS = st.text("ab", max_size=5)


@examples(3)
@given(before=LETTERS, after=LETTERS, stop=st.text("ab", min_size=1, max_size=4))
def test_a_stop_string_over_the_cut_is_never_missed(before, after, stop):
    if stop in before:
        return
    over = 0 <= (before + after).find(stop) < len(before)
    parts = answer(2, text=before[:2]), answer(3, text=before[2:])
    if any(before.endswith(stop[:end]) for end in range(1, len(stop))):
        with pytest.raises(RequestError, match=r"^stop: expected an answer that was not cut"):
            resumed(*parts, stop=["c", stop])
    else:
        assert not over
        assert resumed(*parts, stop=["c", stop])["stop"] == ["c", stop]


def test_a_stop_string_may_begin_with_the_character_that_was_cut():
    with pytest.raises(RequestError, match=r"^stop: expected an answer that was not cut inside"):
        resumed(answer(text="so \ufffd"), stop="🍒")
    assert resumed(answer(text="so \ufffd "), stop="🍒")["stop"] == "🍒"
