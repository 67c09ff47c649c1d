"""One of several answers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import ChoiceLogitProcessor
from sglang_lp.errors import Contradiction, InvalidParameter
from sglang_lp.testing import FakeRequest, ProcessorContract, run

END = 9
choices = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=5, unique_by=tuple
)


def flat(sequences, **more):
    return {
        "token_ids": [token_id for sequence in sequences for token_id in sequence],
        "lengths": [len(sequence) for sequence in sequences],
        **more,
    }


class TestContract(ProcessorContract):
    processor = ChoiceLogitProcessor
    valid_params = (
        flat([[7]]),
        flat([[3, 4], [3, 5, 6]]),
        flat([[3], [3, 5, 6]], eos_token_ids=[END]),
    )
    invalid_params = (
        ({"token_ids": [1]}, "lengths"),
        ({"token_ids": [1, 2], "lengths": [3]}, "lengths"),
        ({"token_ids": [1, 1000], "lengths": [2]}, "token_ids"),
        (flat([[1]], eos_token_ids=[1000]), "eos_token_ids"),
        (flat([[1], [1, 2]]), "eos_token_ids"),
    )

    def _cases(self):
        """Only what the processor lets a model generate has a next step."""
        histories = ([], [3, 5], [3, 5, 6], [3, 4, 8, 8], [7, 1, 2], [3, END])
        return [
            case._replace(output_ids=output)
            for case in super()._cases()[::5]
            for output in histories
            if not isinstance(self._next(case, output), Contradiction)
        ]

    def _next(self, case, output):
        custom_params = FakeRequest([1], output).custom_params(case.params)
        try:
            return ChoiceLogitProcessor()(torch.zeros(1, 1000), [custom_params])
        except Contradiction as error:
            return error


@given(choices, st.randoms(use_true_random=False))
def test_the_answer_is_a_choice_and_then_the_end(sequences, random):
    def model(_token_ids):
        return [random.random() for _ in range(10)]

    output = run(
        ChoiceLogitProcessor,
        flat(sequences, eos_token_ids=[END]),
        [1],
        model,
        steps=8,
        vocab_size=10,
    ).token_ids

    assert END in output
    assert output[: output.index(END)] in sequences


@given(choices, st.lists(st.integers(0, 3), max_size=4))
def test_every_choice_stays_open_until_the_model_leaves_it(sequences, begun):
    custom_params = FakeRequest([1], begun).custom_params(flat(sequences, eos_token_ids=[END]))
    possible = {
        [*sequence, END][len(begun)] for sequence in sequences if sequence[: len(begun)] == begun
    }
    if not possible:
        with pytest.raises(Contradiction, match="continues no choice"):
            ChoiceLogitProcessor()(torch.zeros(1, 10), [custom_params])
        return

    row = ChoiceLogitProcessor()(torch.zeros(1, 10), [custom_params])[0]

    assert {i for i, logit in enumerate(row.tolist()) if logit == 0} == possible


def test_without_an_end_token_the_model_goes_on_by_itself():
    played = run(ChoiceLogitProcessor, flat([[1, 2], [3]]), [5], [2, 4, 6, 8], steps=4)

    assert played.token_ids == [1, 2, 6, 8]


def test_a_choice_that_begins_another_needs_an_end_token():
    with pytest.raises(InvalidParameter, match="a prefix of another"):
        ChoiceLogitProcessor.parse_params(flat([[1, 2], [1]]))


def test_after_a_choice_any_of_the_end_tokens_may_come():
    params = flat([[1, 2]], eos_token_ids=[6, 8])

    begun = FakeRequest([5], [1]).custom_params(params)
    chosen = FakeRequest([5], [1, 2]).custom_params(params)
    rows = ChoiceLogitProcessor()(torch.zeros(2, 10), [begun, chosen]).tolist()

    assert [{i for i, logit in enumerate(row) if logit == 0} for row in rows] == [{2}, {6, 8}]
    assert run(ChoiceLogitProcessor, params, [5], [1, 2, 8, 6], steps=4).token_ids == [1, 2, 8, 6]


def test_after_the_end_nothing_but_the_end_may_come():
    # A request with ignore_eos goes on there.
    params = flat([[1, 2], [1]], eos_token_ids=[8])
    played = run(ChoiceLogitProcessor, params, [5], [1, 2, 8, 4, 3, 1, 2, 4], steps=8)

    assert played.token_ids == [1, 2, 8, 8, 8, 8, 8, 8]
