"""The hooks of a verify step, on tensors of a CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.builtins import DisallowedTokensLogitsProcessor, ScheduledBiasLogitProcessor
from sglang_lp.links import Serving
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps
from sglang_lp.server.scheduler.speculation import TreeSteps

WIDTH = 3
#: Two requests: a chain, and a root with two children.
TREES = Drafts(
    WIDTH,
    [[10, 11, 12], [20, 21, 22]],
    [[1, 2, -1], [1, -1, -1]],
    [[-1, -1, -1], [-1, 2, -1]],
)

#: One request with a chain.
CHAIN = Drafts(WIDTH, [[1, 1, 1]], [[1, 2, -1]], [[-1] * WIDTH])


def verify_input(trees=TREES):
    return SimpleNamespace(
        draft_token_num=trees.width,
        draft_token=torch.tensor(trees.token_ids, dtype=torch.int32).flatten(),
        retrieve_next_token=torch.tensor(trees.first_child),
        retrieve_next_sibling=torch.tensor(trees.next_sibling),
    )


def step(trees=None, *, mode=ForwardMode.TARGET_VERIFY, processors=True, grammars=(None, None)):
    return SimpleNamespace(
        spec_info=verify_input() if trees is None else trees,
        sampling_info=SimpleNamespace(has_custom_logit_processor=processors),
        forward_mode=mode,
        has_grammar=any(grammars),
        reqs=[SimpleNamespace(grammar=grammar) for grammar in grammars],
    )


def steps(may_act):
    return SimpleNamespace(may_act=may_act, skip=lambda *_: False, verified=None)


def verifying(edit):
    """Return the hook before a verify step samples, with something else that edits."""
    return TreeSteps(SimpleNamespace(run_drafts=edit)).verify


class Edit:
    """Write down what a step was given."""

    def __init__(self):
        self.calls = []

    def __call__(self, *given):
        self.calls.append(given)


class Mask:
    def apply(self, logits):
        logits[0, 0] = -torch.inf


def sample(hook, batch, *given):
    """Do what SGLang does with the grammar's mask; return the logits."""
    (_, _, output, mask), _ = hook(batch.spec_info, batch, "logits_output", *given)
    assert output == "logits_output"
    logits = torch.zeros(2 * WIDTH, 5)
    mask.apply(logits)
    return logits


def test_a_step_is_given_the_trees_as_they_were_drafted():
    edit, batch = Edit(), step()
    logits = sample(verifying(edit), batch)
    ((given, info, width, masked, drafts),) = edit.calls
    assert given is logits
    assert info is batch.sampling_info
    assert width == WIDTH
    assert not any(masked)
    assert drafts() == TREES


@pytest.mark.parametrize("how", ["positional", "keyword"])
def test_processors_act_behind_the_grammar(how):
    seen = []
    hook = verifying(lambda logits, *_: seen.append(logits.clone()))
    batch, mask = step(grammars=(object(), None)), Mask()
    if how == "positional":
        sample(hook, batch, mask)
    else:
        (*_, stand_in), _ = hook(batch.spec_info, batch, "logits_output", grammar_mask=mask)
        stand_in.apply(torch.zeros(2 * WIDTH, 5))
    assert seen[0][0, 0] == -torch.inf


def test_a_step_is_told_which_requests_a_grammar_has_masked():
    edit = Edit()
    sample(verifying(edit), step(grammars=(None, object())), Mask())
    assert edit.calls[0][3] == [False, True]


def test_whatever_else_sglang_passes_is_passed_on():
    batch = step()
    args, kwargs = verifying(Edit())(batch.spec_info, batch, "output", None, 7, other="more")
    assert args[4:] == (7,)
    assert kwargs == {"other": "more"}


@pytest.mark.parametrize("batch", [step(processors=False), step(mode=ForwardMode.IDLE)])
def test_a_step_without_processors_or_requests_is_left_alone(batch):
    asked = []
    TreeSteps(steps(lambda *given: asked.append(given))).capture(None, batch, is_verify=True)
    assert verifying(Edit())(batch.spec_info, batch, "logits_output", None) is None
    assert not asked


@pytest.mark.parametrize("which", ["batch", "forward_batch"])
def test_the_trees_are_copied_before_the_forward(which):
    batch = step()
    may_act = steps(lambda info, width: (info, width) == (batch.sampling_info, WIDTH))
    hook = TreeSteps(may_act).capture
    hook("worker", **{"batch": None, which: batch}, is_verify=True)
    edit = Edit()
    # What is drafted next may be written into the same tensors.
    for tensor in (batch.spec_info.draft_token, batch.spec_info.retrieve_next_token):
        tensor.fill_(0)
    sample(verifying(edit), batch)
    assert edit.calls[0][-1]() == TREES


@pytest.mark.parametrize(("may_act", "is_verify"), [(False, True), (True, False)])
def test_nothing_is_copied_while_nobody_may_act_or_nothing_is_verified(may_act, is_verify):
    batch = step()
    before = dict(vars(batch.spec_info))
    TreeSteps(steps(lambda *_: may_act)).capture("worker", None, batch, None, is_verify)
    assert vars(batch.spec_info) == before


def test_what_fails_before_the_forward_leaves_the_reading_to_the_step(caplog):
    def fails(*_given):
        raise MemoryError("no room")

    batch, edit = step(), Edit()
    TreeSteps(steps(fails)).capture("worker", None, batch, None, True)
    sample(verifying(edit), batch)

    assert edit.calls[0][-1]() == TREES
    assert "no room" in caplog.text


# What upstream is about to change, see docs/versions.md


def test_what_a_graph_is_captured_with_has_no_processors():
    captured = SimpleNamespace(spec_info=verify_input(), forward_mode=ForwardMode.TARGET_VERIFY)
    assert verifying(Edit())(captured.spec_info, captured, "logits_output", None) is None
    captured.sampling_info = SimpleNamespace(temperatures=None)
    TreeSteps(steps(None)).capture(None, None, captured, is_verify=True)
    assert verifying(Edit())(captured.spec_info, captured, "logits_output", None) is None


def served(count=2):
    """Return steps, and SGLang's sampling info of requests with a ban each."""
    return _served(DisallowedTokensLogitsProcessor(), {"token_ids": [0]}, count)


def biased(start):
    """Return the same of one request, whose bias begins at a position."""
    return _served(ScheduledBiasLogitProcessor(), {"token_ids": [0], "bias": 1, "start": start}, 1)


def _served(processor, given, count):
    params = []
    for _ in range(count):
        req = SimpleNamespace(origin_input_ids=[1], output_ids=[], to_finish=None, grammar=None)
        params.append({**given, "__req__": req})
        attach_row(params[-1], [Serving(processor, processor.parse_params(given))])
    info = SimpleNamespace(custom_params=params, has_custom_logit_processor=True)
    return Steps(PendingResults()), info


def ended(info):
    return [one["__req__"].to_finish for one in info.custom_params]


def test_drafts_that_are_verified_past_the_processors_end_their_requests(caplog):
    """A verify step that is fused, or replayed from a graph, calls no function of SGLang's."""
    made, info = served()
    batch = step()
    batch.sampling_info = info
    TreeSteps(made).capture(None, None, batch, is_verify=True)
    made.end_step(None, "scheduler", batch)

    assert all(one.status_code == 500 for one in ended(info))
    assert "verifies drafted tokens in a step that sglang-lp does not know" in caplog.text


def test_drafts_that_processors_have_seen_end_nothing():
    made, info = served()
    batch = step()
    batch.sampling_info = info
    TreeSteps(made).capture(None, None, batch, is_verify=True)
    sample(TreeSteps(made).verify, batch)
    made.end_step(None, "scheduler", batch)
    made.end_step(None, "scheduler", batch)

    assert ended(info) == [None, None]


@pytest.mark.parametrize(("start", "skipped"), [(0, 0), (WIDTH, 0), (4 * WIDTH, 3)])
def test_steps_in_which_no_processor_can_act_are_hidden_from_sglang(start, skipped):
    made, info = biased(start)
    batch, logits = step(), torch.zeros(WIDTH, 5)
    batch.sampling_info, batch.reqs = info, batch.reqs[:1]
    trees, seen = TreeSteps(made), []
    for _ in range(5):
        trees.capture(None, None, batch, is_verify=True)
        seen.append(info.has_custom_logit_processor)
        if seen[-1]:
            made.run_drafts(logits, info, WIDTH, (), lambda: CHAIN)
        else:
            assert trees.verify(batch.spec_info, batch, "logits_output", None) is None
        made.end_step(None, "scheduler", batch)
        assert info.has_custom_logit_processor  # SGLang filters and merges by it
        info.custom_params[0]["__req__"].output_ids.extend(range(WIDTH))

    # The first step tells until when the request sleeps.
    assert seen == [True, *[False] * skipped, *[True] * (4 - skipped)]
    assert logits[0].tolist() != [0.0] * 5
    assert ended(info) == [None]


@pytest.mark.parametrize("kept", ["persistent edits", "another request"])
def test_steps_that_may_edit_are_not_skipped(kept):
    made, info = served() if kept == "persistent edits" else biased(4 * WIDTH)
    rows = len(info.custom_params)
    made.run_drafts(torch.zeros(rows * WIDTH, 5), info, WIDTH, (), lambda: CHAIN)
    if kept == "another request":
        info.custom_params = [*info.custom_params]

    assert not made.skip(info, WIDTH)
    assert info.has_custom_logit_processor


def test_a_step_that_cannot_be_skipped_ends_its_requests(monkeypatch):
    made, info = served()
    monkeypatch.setattr(made._batch, "skip", None)

    assert not made.skip(info, WIDTH)
    assert all(one.status_code == 500 for one in ended(info))


def test_a_verify_step_that_also_calls_processors_edits_once():
    """SGLang's pull request 27769: ``apply_custom_logit_processor`` behind the grammar's mask."""
    made, info = served()
    batch = step()
    batch.sampling_info, info.grammars = info, None
    TreeSteps(made).capture(None, None, batch, is_verify=True)
    logits = sample(TreeSteps(made).verify, batch)
    edited = logits.clone()
    made.run(logits, info, num_tokens_in_batch=WIDTH)
    made.end_step(None, "scheduler", batch)

    assert edited[:, 0].tolist() == [-torch.inf] * (2 * WIDTH)
    assert torch.equal(logits, edited)
    assert ended(info) == [None, None]


def test_drafts_that_only_sglang_calls_processors_for_end_their_requests(caplog):
    made, info = served()
    info.grammars = None
    made.run(torch.zeros(2 * WIDTH, 5), info, num_tokens_in_batch=WIDTH)

    assert all(one.status_code == 500 for one in ended(info))
    assert "verifies drafted tokens in a step that sglang-lp does not know" in caplog.text


def test_a_grammar_that_shows_no_mask_ends_its_own_requests(caplog):
    """A branch of SGLang's applies grammars inside a captured graph."""
    made, info = served()
    batch = step(grammars=(object(), None))
    batch.sampling_info, batch.reqs[0].to_finish = info, None
    sample(TreeSteps(made).verify, batch)

    assert batch.reqs[0].to_finish.status_code == 500
    assert "applies grammars to drafted tokens where sglang-lp does not see it" in caplog.text
    assert not hasattr(batch.reqs[1], "to_finish")


@pytest.mark.parametrize("logits", [None, torch.zeros(2, 5), torch.zeros(1, 5)])
def test_a_verify_step_that_does_not_show_the_logits_of_every_node_ends_its_requests(
    caplog, logits
):
    made, info = served()
    made.run_drafts(logits, info, WIDTH, (), None)

    assert all(one.status_code == 500 for one in ended(info))
    assert "verifies drafted tokens in a step that sglang-lp does not know" in caplog.text
