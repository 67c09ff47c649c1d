"""A refusal by SGLang's own types names the field, which SGLang's messages leave out."""

from __future__ import annotations

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.native_types import check_types

pytestmark = pytest.mark.slow

FIELDS = {
    "rid": {},
    "lora_path": 5,
    "stream": "x",
    "sampling_params": 5,
    "nope": 3,
}
#: Only the schema refuses them, which SGLang has from 0.5.22 on.
OF_THE_SCHEMA = {"image_data": [5]}
SAMPLING = {
    "json_schema": {},
    "logit_bias": [1],
    "skip_special_tokens": 3,
    "is_normalized": True,
    "n": "a",
}


def refused(body):
    with pytest.raises(RequestError) as refusal:
        check_types({"text": ["a"], **body})
    return refusal.value.param


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_another_type_is_named(name):
    assert refused({name: FIELDS[name]}) == name


def test_a_field_that_the_schema_refuses_is_named():
    pytest.importorskip("sglang.srt.entrypoints.api_contract")
    for name, value in OF_THE_SCHEMA.items():
        assert refused({name: value}) == name
    for name, value in SAMPLING.items():
        assert refused({"sampling_params": {name: value}}) == name
        assert refused({"sampling_params": [{"n": 1}, {name: value}, {}]}) == name


def test_what_generate_takes_passes():
    check_types({"text": ["a", "b"]})
    check_types({"text": ["a", "b"], "sampling_params": None})
    check_types({"text": ["a"], "sampling_params": {"n": 2, "custom_params": {"a": [1]}}})
