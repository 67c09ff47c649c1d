"""The fakes and the contract suite keep their promises, and the suite finds broken classes."""

import math
import subprocess
import sys

import pytest
import torch

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.errors import InvalidParameter, ProcessorFault
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.testing import Batch, FakeRequest, Played, ProcessorContract, decode, run

BUDGET = {
    "thinking_budget": 3,
    "thinking_start_token_id": 1,
    "thinking_end_token_id": 2,
    "new_line_token_id": 3,
}


def test_a_decode_follows_its_script_where_the_processor_lets_it():
    played = run(ThinkingBudgetLogitProcessor, BUDGET, [1], [7, 8, 9, 7, 7, 4, 5], steps=8)

    assert played.token_ids == [7, 8, 9, 3, 2, 4, 5, 0]
    assert played.logits[3].isfinite().nonzero().tolist() == [[3]]


def test_a_decode_asks_its_model_for_each_token():
    def model(token_ids):
        return [float(i == len(token_ids)) for i in range(10)]

    played = run(LogitProcessorThatRecords, {}, [0, 0], model, steps=3, vocab_size=10)

    assert played.token_ids == [2, 3, 4]
    assert played.seen == [[], [2], [2, 3]]


class LogitProcessorThatRecords(LogitProcessor):
    def edit(self, request, edits):
        assert request.position == len(request.output_ids)


def test_a_decode_raises_what_goes_wrong():
    with pytest.raises(InvalidParameter, match="thinking_start_token_id"):
        run(ThinkingBudgetLogitProcessor, {}, [1], [], steps=1)
    with pytest.raises(ProcessorFault, match="Fails failed at token 1"):
        run(Fails, {}, [1], [], steps=2)


class Fails(LogitProcessor):
    def edit(self, request, edits):
        if request.position == 1:
            raise ValueError


def test_a_fault_is_the_authors_where_sglang_is_not_installed(monkeypatch):
    for name in ("sglang", "sglang.srt.managers.schedule_batch"):
        monkeypatch.setitem(sys.modules, name, None)
    contract = {"processor": Fails, "valid_params": [{}]}
    suite = type("Suite", (ProcessorContract,), contract)()
    played = Played(Fails, {}, [1])
    decode(Batch(), lambda every: torch.zeros(len(every), 9), [played], steps=3)

    with pytest.raises(ProcessorFault, match="Fails failed at token 1"):
        suite.test_survives_a_retraction()
    assert "Fails failed at token 1" in played.error


def test_a_served_request_keeps_sglangs_books():
    request = FakeRequest([1, 2], [3], served=True)
    request.append(4)

    assert request.kv.kv_committed_len == 4
    assert request.to_finish is None
    assert [*request.output_ids] == [3, 4]


def test_nothing_but_the_standard_library_is_needed_to_import_it():
    heavy = "{'torch', 'sglang', 'pytest'}"
    code = f"import sys, sglang_lp.testing; print(sorted({heavy} & {{*sys.modules}}))"

    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout

    assert printed.strip() == "[]"


# Processors with one fault each, and the test of the suite that has to find it


class BansLast(LogitProcessor):
    """A correct class, and the base of broken ones."""

    def start(self, request):
        return [*request.prompt_ids]

    def advance(self, request, token_ids):
        request.state.extend(token_ids)

    def edit(self, request, edits):
        edits.ban([request.state[-1]])


class CountsCalls(BansLast):
    def edit(self, request, edits):
        request.state.append(len(request.state) % edits.vocab_size)
        super().edit(request, edits)


class KeepsStateOnInstance(BansLast):
    def __init__(self):
        self.calls = 0

    def edit(self, request, edits):
        self.calls += 1
        edits.ban([self.calls])


class ForgetsTokens(BansLast):
    def advance(self, request, token_ids):
        request.state[:] = [token_ids[0]]


class IgnoresParameters(BansLast):
    @classmethod
    def parse_params(cls, custom_params, vocab_size=None):
        return Parameters()


class CannotTellHistory(BansLast):
    def edit(self, request, edits):
        edits.ban([request.prompt_ids[-1] if request.position % 2 else id(request) % 900])


class RewritesEntries(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list or (), strict=False):
            if params is not None:
                row.add_(0.0)
        return logits


class LooksAtNeighbours(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits - logits.mean() if custom_param_list else logits


class LeavesNothing(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list or (), strict=False):
            if params is not None:
                row.fill_(-math.inf)
        return logits


class ChangesType(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits.to(torch.float64)


class WritesWithoutParameters(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits.fill_(0.0)


class WritesAround(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        if custom_param_list and logits.storage_offset():
            logits.as_strided((1,), (1,), logits.storage_offset() - 1).fill_(5.0)
        return logits


def verdicts(cls):
    """Run the suite over a class; return the names of the tests that fail."""
    suite = type("Suite", (ProcessorContract,), {"processor": cls, "valid_params": [{}]})()
    failed = set()
    for name in dir(ProcessorContract):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except (AssertionError, InvalidParameter, ProcessorFault, RuntimeError):
                failed.add(name)
    return failed


def test_the_suite_passes_what_is_right():
    assert verdicts(BansLast) == set()


@pytest.mark.parametrize(
    ("cls", "test"),
    [
        (CountsCalls, "test_the_same_history_gives_the_same_result"),
        (KeepsStateOnInstance, "test_keeps_nothing_on_the_instance"),
        (ForgetsTokens, "test_step_by_step_is_the_same_as_at_once"),
        (IgnoresParameters, "test_names_the_parameter_that_it_refuses"),
        (CannotTellHistory, "test_survives_a_retraction"),
        (RewritesEntries, "test_keeps_the_bits_of_what_it_does_not_edit"),
        (LooksAtNeighbours, "test_no_row_depends_on_another"),
        (LeavesNothing, "test_leaves_every_row_a_token"),
        (ChangesType, "test_keeps_shape_type_and_device"),
        (WritesWithoutParameters, "test_no_batch_at_all"),
        (WritesWithoutParameters, "test_leaves_rows_without_parameters_alone"),
        (WritesAround, "test_respects_the_layout_of_the_logits"),
    ],
)
def test_the_suite_finds_what_is_wrong(cls, test):
    assert test in verdicts(cls)
