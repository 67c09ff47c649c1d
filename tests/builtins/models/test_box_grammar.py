"""Boxes in a fixed form. That they are SGLang's, bit for bit, is in ``test_same_as_sglang``."""

import pytest
import torch

from sglang_lp.builtins import LocateAnythingBoxGrammarLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.testing import FakeRequest, ProcessorContract, run

START, END, NONE = 1, 2, 4
IDS = {
    "box_start_token_id": START,
    "box_end_token_id": END,
    "coord_start_token_id": 100,
    "coord_end_token_id": 199,
    "none_token_id": NONE,
}


class TestContract(ProcessorContract):
    processor = LocateAnythingBoxGrammarLogitProcessor
    valid_params = (IDS, {**IDS, "coord_end_token_id": 100})
    invalid_params = (
        *(({key: value for key, value in IDS.items() if key != name}, name) for name in IDS),
        ({**IDS, "coord_end_token_id": 99}, "coord_end_token_id"),
        ({**IDS, "none_token_id": 1000}, "none_token_id"),
    )
    token_ids = (START, START, START, 100, 101, 102, END, NONE)


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ([], None),
        ([9, 100, NONE], None),
        ([START], {*range(100, 200), NONE}),
        ([START, NONE], {END}),
        ([START, 100], {*range(100, 200)}),
        ([START, 100, 150], {*range(100, 200), END}),
        ([START, 100, 150, 100], {*range(100, 200)}),
        ([START, 100, 150, 100, 199], {END}),
        ([START, 100, 150, END], None),
        ([START, 100, 150, END, START], {*range(100, 200), NONE}),
    ],
)
def test_a_box_is_none_a_point_or_a_bounding_box(said, allowed):
    custom_params = FakeRequest([START], said).custom_params(IDS)
    row = LocateAnythingBoxGrammarLogitProcessor()(torch.zeros(1, 300), [custom_params])[0]

    found = {*(row > -torch.inf).nonzero()[:, 0].tolist()}
    assert found == ({*range(300)} if allowed is None else allowed)


def test_two_ids_name_no_more_coordinates_than_a_step_can_afford():
    def parse(last):
        params = {**IDS, "coord_end_token_id": last}
        return LocateAnythingBoxGrammarLogitProcessor.parse_params(params)

    assert parse(1_123).coord_end_token_id == 1_123
    with pytest.raises(InvalidParameter, match="expected 1 to 1024 coordinates"):
        parse(1_124)


def test_whatever_the_model_wants_it_closes_its_boxes():
    wishes = [START, 7, 7, 7, 7, 7, 9, START, NONE, 7, 9]
    played = run(
        LocateAnythingBoxGrammarLogitProcessor, IDS, [5], wishes, steps=len(wishes), vocab_size=300
    )

    assert played.token_ids == [START, NONE, END, 7, 7, 7, 9, START, NONE, END, 9]
