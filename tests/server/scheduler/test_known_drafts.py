"""Drafts that give way to tokens that will be forced, on tensors of a CPU."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_lp._engine.history.attached import attach_row
from sglang_lp.errors import RequestError
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.scheduler import known_drafts
from sglang_lp.server.scheduler.reasons import error_of
from support.fakes.gpu import FakeGpu

VOCAB = 1000
DRAFTED = 5


class Foresees(LogitProcessor):
    """Forces what the test says."""

    def start(self, request):
        return request.params

    def edit(self, request, edits):
        edits.force(0)

    def foresee(self, request):
        if request.state is None:
            raise KeyError("no idea")
        if isinstance(request.state, Exception):
            raise request.state
        return request.state


def requests(*foreseen, prompt=7, known=3, newer=2, grammars=()):
    """Return a batch whose host has seen ``known`` tokens of each request, and ``newer`` not yet.

    Args:
        foreseen: For each request the tokens from position ``known`` on.
    """
    reqs, custom_params = [], []
    for i, tokens in enumerate(foreseen):
        req = SimpleNamespace(
            origin_input_ids=[1] * prompt,
            output_ids=[2] * known,
            grammar=object() if i in grammars else None,
            to_finish=None,
        )
        params = {"__req__": req}
        if tokens != "no processor":
            row = attach_row(params, [Serving(Foresees(), None)])
            row.accept_tokens()
            row.leaves_one = tokens is None or bool(tokens)
            row.turns[0].request.state = tokens
        reqs.append(req)
        custom_params.append(params)
    lengths = torch.full((len(reqs),), prompt + known + newer - 1)
    return SimpleNamespace(
        reqs=reqs,
        seq_lens=lengths,
        forward_mode=ForwardMode.DECODE,
        sampling_info=SimpleNamespace(
            custom_params=custom_params,
            has_custom_logit_processor=True,
            vocab_size=VOCAB,
            is_all_greedy=True,
        ),
    )


def drafts(batch):
    return torch.arange(100, 100 + DRAFTED).repeat(len(batch.reqs), 1)


@pytest.mark.parametrize("seed", range(50))
def test_known_tokens_stand_where_they_will_come(seed):
    rng = random.Random(seed)
    foreseen = [[rng.randrange(500, 600) for _ in range(rng.randint(0, 9))] for _ in range(4)]
    newer = rng.randint(0, DRAFTED + 1)
    batch = requests(*foreseen, newer=newer)
    given = drafts(batch)
    known = known_drafts.foresee(batch, DRAFTED)
    if known is not None:
        known.put(given)

    assert (known is None) == (not any(foreseen))
    for tokens, chain in zip(foreseen, given.tolist(), strict=True):
        # The newest token is at position known + newer - 1, and the first draft follows it.
        by_position = dict(enumerate(tokens))
        expected = [by_position.get(newer + j, 100 + j) for j in range(DRAFTED)]
        assert chain == expected


def test_requests_with_a_grammar_keep_their_drafts():
    batch = requests([7] * 9, [8] * 9, grammars=[1])
    given = drafts(batch)
    known_drafts.foresee(batch, DRAFTED).put(given)

    assert given.tolist() == [[7] * DRAFTED, [*range(100, 100 + DRAFTED)]]


@pytest.mark.parametrize("without", ["no processor", [], "processors of the batch", "requests"])
def test_without_anything_known_a_batch_costs_nothing(without):
    batch = requests("no processor" if isinstance(without, str) else without)
    if without == "processors of the batch":
        batch.sampling_info.has_custom_logit_processor = False
    if without == "requests":
        batch.forward_mode = ForwardMode.IDLE
    gpu = FakeGpu()
    batch.seq_lens = gpu.tensor(1, dtype=torch.int64)
    with gpu.counting():
        assert known_drafts.foresee(batch, DRAFTED) is None

    assert (gpu.kernels.total(), gpu.to_device, gpu.waits) == (0, 0, 0)


@pytest.mark.parametrize("requested", [1, 16])
def test_knowing_costs_one_copy_and_as_many_kernels_for_any_batch_and_no_wait(requested):
    batch, gpu = requests(*[[5] * 9] * requested), FakeGpu()
    batch.seq_lens = gpu.tensor(requested, dtype=torch.int64)
    given = gpu.tensor(requested, DRAFTED, dtype=torch.int64)
    with gpu.counting():
        known_drafts.foresee(batch, DRAFTED).put(given)

    assert (gpu.to_device, gpu.waits) == (1, 0)
    assert gpu.kernels.total() <= 16


def test_a_processor_that_cannot_say_ends_its_own_request():
    batch = requests(None, [7] * 9)
    given = drafts(batch)
    known_drafts.foresee(batch, DRAFTED).put(given)

    failed, beside = batch.reqs
    assert "Foresees failed at token 3: " in failed.to_finish.message
    assert beside.to_finish is None
    assert given[1].tolist() == [7] * DRAFTED


def test_what_the_caller_asked_for_ends_a_request_with_http_400_where_drafts_are_foreseen():
    batch = requests(RequestError("there is no such token"), None)
    known_drafts.foresee(batch, DRAFTED)

    of_caller, of_processor = (req.to_finish for req in batch.reqs)
    assert (of_caller.status_code, error_of(of_caller).culprit) == (400, None)
    assert (of_processor.status_code, error_of(of_processor).culprit) == (500, "Foresees")


def test_a_known_token_was_drafted_for_certain():
    batch = requests([7] * 4, "no processor")
    known = known_drafts.foresee(batch, 3)
    places = [[True, True, False], [False] * 3]
    probabilities = torch.full((2, 3, 10), 0.1)
    logits = torch.zeros(2, 3, 10)
    known.make_certain(probabilities)
    known.make_certain_logits(logits)
    candidates, drawn = known.make_drawn(
        torch.tensor([[[1, 2]] * 3] * 2), torch.full((2, 3, 2), 0.5)
    )

    assert known.places.tolist() == places
    for i, row in enumerate(places):
        for j, is_known in enumerate(row):
            chances = [float(token == 7) if is_known else 0.1 for token in range(10)]
            assert probabilities[i, j].tolist() == pytest.approx(chances)
            assert logits[i, j].softmax(-1).tolist() == pytest.approx(chances)
            assert candidates[i, j].tolist() == ([7, 7] if is_known else [1, 2])
            assert drawn[i, j].tolist() == ([1, 1] if is_known else [0.5, 0.5])


def chain_of(batch, topk=1, nodes=DRAFTED + 1):
    """Call the hook on the function that makes EAGLE's verify input."""
    given = drafts(batch)
    shape = {"topk": topk, "num_steps": DRAFTED, "num_draft_tokens": nodes}
    return known_drafts.foresee_chain(
        batch, "input", "parents", "scores", given, None, **shape
    ), given


def test_chains_of_eagle_are_changed_and_what_the_draft_model_wrote_is_not():
    batch = requests([7] * 9)
    (args, kwargs), given = chain_of(batch)

    assert args[:4] == (batch, "input", "parents", "scores")
    assert args[4].tolist() == [[7] * DRAFTED]
    assert kwargs["num_steps"] == DRAFTED
    assert given.tolist() == drafts(batch).tolist()


@pytest.mark.parametrize("shape", [{"topk": 2}, {"nodes": 4}])
def test_trees_of_eagle_stay(shape):
    assert chain_of(requests([7] * 9), **shape)[0] is None


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
def test_blocks_of_dspark_are_changed_wherever_they_stand(folded, greedy):
    batch = requests([7] * 3)
    batch.sampling_info.is_all_greedy = greedy
    given = drafts(batch)
    proposal = SimpleNamespace(
        draft_block=SimpleNamespace(
            draft_tokens=given, corrected_logits=torch.zeros(1, DRAFTED, VOCAB)
        ),
        verify_ids=torch.cat((torch.tensor([[1]]), given), 1) if folded else None,
        confidence=torch.full((1, DRAFTED), 0.5),
    )
    result = known_drafts.foresee_block(proposal, batch)

    assert result is proposal
    assert given.tolist() == [[7, *range(101, 100 + DRAFTED)]]
    if folded:
        assert proposal.verify_ids.tolist() == [[1, *given[0].tolist()]]
    assert proposal.confidence.tolist() == [[1.0, *[0.5] * (DRAFTED - 1)]]
    certain = proposal.draft_block.corrected_logits[0, 0].softmax(-1)[7] == 1
    assert bool(certain) is not greedy


def trees_of(batch, rng, width=DRAFTED + 1, newer=2):
    """Return random trees as NGRAM finds them, and call the hook on them."""
    token_ids, above = [], np.zeros((len(batch.reqs), width, width), dtype=bool)
    for i in range(len(batch.reqs)):
        token_ids += [0, *range(100, 99 + width)]
        for node in range(width):
            above[i, node] = above[i, rng.randrange(node)] if node else False
            above[i, node, node] = True
    trees = np.array(token_ids), above.flatten()
    worker = SimpleNamespace(draft_token_num=width, prev_accept_lens=[newer] * len(batch.reqs))
    return trees, known_drafts.foresee_trees(trees, worker, batch)


@pytest.mark.parametrize("seed", range(50))
def test_trees_of_ngram_become_chains_of_what_is_known(seed):
    rng = random.Random(seed)
    foreseen = [[rng.randrange(500, 600) for _ in range(rng.randint(0, 9))] for _ in range(4)]
    newer = rng.randint(0, DRAFTED + 1)
    batch = requests(*foreseen, newer=newer)
    before, after = trees_of(batch, rng, newer=newer)
    # What NGRAM shares with its next step is not written over.
    assert {*before[0].tolist()} <= {0, *range(100, 100 + DRAFTED)}

    shape = len(foreseen), DRAFTED + 1
    for i, tokens in enumerate(foreseen):
        known = tokens[newer:][:DRAFTED]
        chain = [0, *known, *range(100 + len(known), 100 + DRAFTED)]
        assert after[0].reshape(shape)[i].tolist() == chain
        expected = np.tri(DRAFTED + 1) if known else before[1].reshape(*shape, -1)[i]
        assert (after[1].reshape(*shape, -1)[i] == expected).all()


def test_trees_stay_where_nothing_is_known_and_where_a_processor_cannot_say():
    for batch in (requests([], "no processor"), requests([7] * 9, grammars=[0]), requests(None)):
        before, after = trees_of(batch, random.Random(0))
        assert all(one is other for one, other in zip(before, after, strict=True))
    assert "Foresees failed at token 3: " in batch.reqs[0].to_finish.message
