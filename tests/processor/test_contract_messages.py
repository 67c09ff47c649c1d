"""Failures of the contract suite say what was expected, what came, where, and the usual cause."""

import pytest

from sglang_lp import Edits, History, LogitProcessor, Parameters, Request
from sglang_lp.params import TokenIdSet
from sglang_lp.testing import ProcessorContract, run


class Base(LogitProcessor):
    class Params(Parameters, frozen=True):
        token_ids: TokenIdSet


class NeedsNothing(Base):
    """Bans after two tokens, and says that it needs no history."""

    needs = History.NONE

    def edit(self, request: Request, edits: Edits) -> None:
        if request.position >= 2:
            edits.ban(request.params.token_ids)


class KeepsOnSelf(Base):
    """Counts the steps of all requests."""

    def __init__(self):
        self.steps = 0

    def edit(self, request: Request, edits: Edits) -> None:
        self.steps += 1
        if self.steps > 2:
            edits.ban(request.params.token_ids)


class CountsInEdit(Base):
    """Changes its state where it only decides."""

    def start(self, request: Request) -> list[int]:
        return [0]

    def edit(self, request: Request, edits: Edits) -> None:
        request.state[0] += 1
        if request.state[0] > 1:
            edits.ban(request.params.token_ids)


class ForksNothing(Base):
    """Shares its state with its forks."""

    def start(self, request: Request) -> list[int]:
        return []

    def advance(self, request: Request, token_ids) -> None:
        request.state.extend(token_ids)

    def fork(self, request: Request) -> list[int]:
        return request.state

    def edit(self, request: Request, edits: Edits) -> None:
        if len(request.state) % 2:
            edits.ban(request.params.token_ids)


def failure(kind, test):
    class TestIt(ProcessorContract):
        processor = kind
        valid_params = ({"token_ids": [2, 3]},)

    with pytest.raises(AssertionError) as caught:
        getattr(TestIt(), test)()
    return str(caught.value)


@pytest.mark.parametrize(
    ("processor", "test", "hint"),
    [
        (NeedsNothing, "test_step_by_step_is_the_same_as_at_once", "needs = History.NONE"),
        (KeepsOnSelf, "test_no_row_depends_on_another", "keep nothing on self"),
        (CountsInEdit, "test_the_same_history_gives_the_same_result", "in advance() only"),
        (ForksNothing, "test_a_fork_is_thrown_away_without_trace", "fork() must copy"),
    ],
)
def test_a_failure_fits_ten_lines_and_names_the_cause(processor, test, hint):
    lines = failure(processor, test).splitlines()

    assert len(lines) <= 10
    said = {line.split()[0]: line for line in lines[1:]}
    assert [*said] == ["params", "prompt", "output", "expected", "got", "hint"]
    assert "{'token_ids': [2, 3]}" in said["params"]
    assert hint in said["hint"]


def test_a_failure_shows_the_edits_and_the_step():
    said = failure(NeedsNothing, "test_step_by_step_is_the_same_as_at_once")

    assert "step 2 of a decode is not what its history gives" in said
    assert "so this is step 2" in said
    assert "  expected  token 2 banned; token 3 banned\n" in said
    assert "  got       token 2 unchanged; token 3 unchanged\n" in said


def test_a_test_class_without_its_subject_fails_once():
    with pytest.raises(TypeError, match=r"TestIt.valid_params: expected the custom_params of"):
        type("TestIt", (ProcessorContract,), {"processor": Base})
    with pytest.raises(TypeError, match=r"TestIt.processor: expected the class to test"):
        type("TestIt", (ProcessorContract,), {"valid_params": ({},)})
    type("Shared", (ProcessorContract,), {"vocab_size": 50})


def test_a_transcript_prints_its_tokens():
    class Idle(Base):
        def edit(self, request, edits):
            pass

    played = run(Idle, {"token_ids": []}, [7], [5, 2], steps=3, vocab_size=10)

    assert repr(played) == "Transcript(token_ids=[5, 2, 0], logits=3 rows of 10)"
