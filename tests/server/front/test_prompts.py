"""Prompts that are given as token ids: those of the served model, or refused."""

import time
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.errors import RequestError
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.prompts import check_ids, check_prompts
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy

VOCAB = 100
SERVED = SimpleNamespace(model_config=SimpleNamespace(vocab_size=VOCAB))


def body(input_ids, **more):
    from sglang.srt.managers.io_struct import GenerateReqInput

    return GenerateReqInput(input_ids=input_ids, **more)


def passes(obj):
    try:
        for _ in check_prompts(SERVED, obj):
            pass
    except RequestError as error:
        return "input_ids: expected token ids of the served model, 0 to 99" not in str(error)
    return True


ids = st.integers(-3, VOCAB + 2) | st.integers(0, VOCAB - 1)


@given(st.lists(ids, max_size=5) | st.lists(st.lists(ids, max_size=300), max_size=3))
def test_a_body_passes_if_every_id_is_in_the_vocabulary(input_ids):
    flat = [i for one in input_ids for i in (one if isinstance(one, list) else [one])]
    assert passes(body(input_ids)) == all(0 <= i < VOCAB for i in flat)


@pytest.mark.parametrize("prompt", [[2**63], [-(2**70)], [[1], [2**64]]])
def test_an_id_beyond_64_bits_is_refused(prompt):
    assert not passes(body(prompt))


@pytest.mark.parametrize("prompt", [None, [], [[]], "text", [1.5], [["a"]], [[1], "a"], [None]])
def test_what_is_no_list_of_ids_is_left_to_sglang(prompt):
    assert passes(body(prompt))


def test_pad_values_of_images_pass():
    # SGLang's own placeholders for the parts of an image.
    pads = [1, 1_000_003, -1]
    assert passes(body(pads, image_data=["image"]))
    assert not passes(body(pads, image_data=[None]))
    check_ids(SERVED, body(None, text="a", image_data=["image"]), array("q", pads))


def test_a_tokenized_request_with_an_image_passes_the_gate_with_its_pad_values():
    obj = body(None, text="a", image_data=["image"])
    tokenized = SimpleNamespace(input_ids=array("q", [1, 1_000_003, -1]))
    Admission(Guard(Policy())).admit(tokenized, SERVED, obj)


def test_a_model_of_text_ignores_images_and_gets_no_other_ids_for_them():
    served = SimpleNamespace(**vars(SERVED), mm_processor=None)
    with pytest.raises(RequestError, match="got -1"):
        [*check_prompts(served, body([-1], image_data=["image"]))]
    with pytest.raises(RequestError, match="got -1"):
        check_ids(served, body(None, text="a", image_data=["image"]), array("q", [-1]))


def test_overridden_embeddings_excuse_no_id():
    assert not passes(SimpleNamespace(input_ids=[-1], embed_overrides=[]))


def test_a_list_is_asked_once_whether_it_has_images():
    """SGLang answers in time that grows with the list."""
    asked = []
    listed = body([[1]] * 50)
    listed.contains_mm_input = lambda: bool(asked.append(True))
    assert len([*check_prompts(SERVED, listed)]) == 50
    assert len(asked) == 1


def test_an_adapter_excuses_no_id():
    from sglang.srt.lora.lora_manager import LoRAManager

    assert not passes(body([VOCAB], lora_path="adapter"))
    assert not passes(body([-1], lora_path="adapter"))
    with pytest.raises(RequestError, match="got 100"):
        check_ids(SERVED, body(None, text="a", lora_path="adapter"), array("q", [VOCAB]))

    plain = SimpleNamespace(attn_dp_enabled=False, enable_dp_attention=False)
    adds = SimpleNamespace(lora_added_tokens_size=1)
    named = SimpleNamespace(lora_name="adapter", pinned=True)
    with pytest.raises(ValueError, match="adapters that add tokens to the vocabulary"):
        LoRAManager.validate_new_adapter(plain, adds, named)


@pytest.mark.parametrize("input_ids", [[1, -5], [[1], [VOCAB]]])
def test_every_way_in_is_checked_without_a_processor(input_ids):
    from fastapi import HTTPException

    admission, obj = Admission(Guard(Policy())), body(input_ids)
    with pytest.raises(RequestError, match=r"^input_ids: "):
        [*admission.check_list(SERVED, obj)]
    with pytest.raises(HTTPException) as caught:
        admission.admit_stream(SERVED, obj)
    assert caught.value.status_code == 400
    tokenized = SimpleNamespace(
        input_ids=array("q", [-5]), sampling_params=SimpleNamespace(custom_params=None)
    )
    with pytest.raises(RequestError, match="got -5"):
        admission.admit(tokenized, SERVED, body([-5]))


def test_a_long_prompt_costs_little():
    obj, long = body(None, text="a"), array("q", [5]) * 131_072
    began = time.thread_time()
    for _ in range(10):
        check_ids(SERVED, obj, long)
    assert time.thread_time() - began < 0.05
