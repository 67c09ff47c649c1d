"""Classes of other engines travel by their name; the server's policy says what runs them."""

import pytest
from transformers import TopKLogitsWarper

from sglang_lp import wire
from sglang_lp.adapters import load
from sglang_lp.client import attach
from sglang_lp.errors import RequestError


@pytest.mark.parametrize(
    "cls", [TopKLogitsWarper, load("support.processors.foreign", "TargetToken", "test")]
)
def test_a_class_of_another_engine_travels_by_its_name(cls):
    body = attach(cls, top_k=5).generate_body({"text": "x"})

    assert body["custom_logit_processor"] == wire.payload_for(cls.__module__, cls.__qualname__)
    assert body["sampling_params"] == {"custom_params": {"top_k": 5}}


def test_what_cannot_travel_by_name_is_refused():
    class Local:
        def __call__(self, input_ids, scores):
            return scores

    for wrong in (Local, dict, TopKLogitsWarper(3)):
        with pytest.raises(RequestError, match="expected a processor class"):
            attach(wrong)
