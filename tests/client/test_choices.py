"""The probabilities of choices, read from every form of an answer."""

import math

import pytest

from sglang_lp.client import attach, probabilities
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.trace import read_exchange
from support.models.vocabularies import one_token_a_byte

TEXTS = [
    {"text": "1", "token_ids": [7], "logprob": math.log(0.25), "probability": 0.25},
    {"text": "5", "token_ids": [9], "logprob": -1.0, "probability": 0.75, "all_spellings": -0.9},
]
REPORT = {"sglang_lp": {"choices": {"pick": "likeliest", "texts": TEXTS, "picked": 1}}}
FORMS = {
    "generate": ({"meta_info": REPORT}, 0),
    "several": ([{"meta_info": {}}, {"meta_info": REPORT}], 1),
    "chat": ({"choices": [{"message": {}}, {"meta_info": REPORT}]}, 1),
}


@pytest.mark.parametrize(("answer", "choice"), FORMS.values(), ids=FORMS)
def test_every_form_is_read(answer, choice):
    found = probabilities(answer, choice)

    assert {**found} == {"1": 0.25, "5": 0.75}
    assert (found.likeliest, found.expected) == ("5", 4.0)
    assert found.scored["5"] == (0.75, -1.0, -0.9, (9,))
    assert found.scored["1"].all_spellings is None


@pytest.mark.parametrize("answer", [{}, [], {"meta_info": {"sglang_lp": {}}}, {"choices": []}])
def test_an_answer_without_probabilities_is_refused_with_what_to_send(answer):
    with pytest.raises(RequestError, match=r"pick.*return_meta_info"):
        probabilities(answer)


def test_more_choices_than_are_scored_are_refused_before_they_are_sent():
    many = [str(number) for number in range(65)]
    assert attach("ChoiceLogitProcessor", choices=many)
    with pytest.raises(InvalidParameter, match=r"pick.*at most 64"):
        attach("ChoiceLogitProcessor", choices=many, pick="tokens")


def test_a_request_with_a_pick_is_resolved_and_traced_with_what_was_picked(tmp_path):
    vote = attach("ChoiceLogitProcessor", choices=["1", "5"], pick="likeliest", eos_token_ids=[0])
    one_token_a_byte("<end>").save(str(tmp_path / "tokenizer.json"))
    assert vote.resolve(tmp_path).custom_params["pick"] == "likeliest"

    answer = {"output_ids": [9], "meta_info": REPORT}
    read = read_exchange(vote.generate_body({"input_ids": [3]}), answer).custom_params
    assert read == {"choices": ["5"], "eos_token_ids": [0]}
