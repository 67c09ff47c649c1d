"""The hooks of verify steps that verify chains, on tensors of a CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.server.scheduler import chains as chains_module
from sglang_lp.server.scheduler.chains import ChainSteps
from sglang_lp.server.scheduler.known_drafts import KnownDrafts
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps as RealSteps
from sglang_lp.server.scheduler.speculation import TreeSteps

WIDTH = 3
TOKENS = [[10, 11, 12], [20, 21, 22]]
WHOLE = Drafts(WIDTH, TOKENS, [[1, 2, -1]] * 2, [[-1] * WIDTH] * 2)
CUT = Drafts(WIDTH, [[10, -1, -1], [20, 21, -1]], [[-1, -1, -1], [1, -1, -1]], [[-1] * WIDTH] * 2)


class Steps:
    """Writes down what a step was given."""

    def __init__(self, *, acts=True, skips=False):
        self.verified, self.acts, self.calls, self.ordinary = None, acts, [], []
        self.skips, self.asked = skips, 0

    def skip(self, info, width):
        assert width == WIDTH
        self.asked += 1
        info.has_custom_logit_processor = not self.skips
        return self.skips

    def may_act(self, _info, width):
        assert width == WIDTH
        return self.acts

    def run_drafts(self, *given):
        self.verified = None
        self.calls.append(given)

    def run(self, *given):
        self.ordinary.append(given)


def info(*, processors=True):
    return SimpleNamespace(has_custom_logit_processor=processors, grammars=None, custom_params=[])


def batch(*grammars, mode=ForwardMode.DECODE, processors=True):
    return SimpleNamespace(
        sampling_info=info(processors=processors),
        forward_mode=mode,
        has_grammar=any(grammars),
        reqs=[SimpleNamespace(grammar=grammar) for grammar in grammars or (None, None)],
        spec_algorithm=SimpleNamespace(is_dflash=lambda: False),
    )


def verify_input(lengths=None):
    """Return SGLang's, whose ragged tokens are followed by the padding of a graph."""
    tokens, layout = [token for chain in TOKENS for token in chain], None
    if lengths is not None:
        chains = [chain[:length] for chain, length in zip(TOKENS, lengths, strict=True)]
        tokens = [*(token for chain in chains for token in chain), 0, 0]
        layout = SimpleNamespace(verify_lens=torch.tensor(lengths, dtype=torch.int32))
    return SimpleNamespace(
        draft_token=torch.tensor(tokens), draft_token_num=WIDTH, ragged_verify_layout=layout
    )


def dflash(steps, given, logits="logits"):
    steps.accept_block(
        None,
        candidates=torch.tensor(TOKENS),
        next_token_logits=logits,
        sampling_info=given.sampling_info,
        draft_input=None,
        bs=2,
    )


def dspark(steps, given, logits="logits"):
    steps.accept_and_finalize(
        None,
        folded_accept=False,
        verify_ids_2d=torch.tensor(TOKENS),
        target_logits=logits,
        sampling_info=given.sampling_info,
        layout=None,
    )


accepts = pytest.mark.parametrize("accept", [dflash, dspark])


@accepts
def test_a_step_is_given_the_chains_as_they_were_drafted(accept):
    steps, given, verified = Steps(), batch(), verify_input()
    chains = ChainSteps(steps)
    chains.begin(verified, given, "target worker")
    verified.draft_token.fill_(0)  # the next drafts may be written into the same tensor
    accept(chains, given)

    ((logits, info, width, masked, drafts),) = steps.calls
    assert (logits, width) == ("logits", WIDTH)
    assert info is given.sampling_info
    assert not any(masked)
    assert drafts() == WHOLE


def test_of_chains_that_are_cut_only_what_is_verified_is_seen():
    steps, given = Steps(), batch()
    chains = ChainSteps(steps)
    chains.begin(verify_input([1, 2]), given, "target worker")
    dspark(chains, given)

    assert steps.calls[0][-1]() == CUT


@accepts
def test_a_step_is_told_which_requests_a_grammar_has_masked(accept):
    steps, given = Steps(), batch(None, object())
    chains = ChainSteps(steps)
    chains.begin(verify_input(), given)
    accept(chains, given)

    assert steps.calls[0][3] == [False, True]


@accepts
@pytest.mark.parametrize("lengths", [None, [1, 2]])
def test_nothing_is_copied_while_nobody_may_act_and_whole_chains_can_still_be_read(accept, lengths):
    steps, given, verified = Steps(acts=False), batch(), verify_input(lengths)
    chains = ChainSteps(steps)
    del verified.draft_token
    chains.begin(verified, given)
    accept(chains, given)

    assert steps.calls[0][-1]() == WHOLE


@accepts
@pytest.mark.parametrize("given", [batch(processors=False), batch(mode=ForwardMode.IDLE)])
def test_a_step_without_processors_or_requests_is_left_alone(accept, given):
    steps = Steps()
    chains = ChainSteps(steps)
    chains.begin(SimpleNamespace(), given)
    accept(chains, given)

    assert not steps.calls
    assert steps.verified is None


def test_a_step_that_is_skipped_is_skipped_before_dspark_chooses_its_graph():
    steps, given = Steps(skips=True), batch()
    chains = ChainSteps(steps)
    block = SimpleNamespace(draft_tokens=torch.tensor(TOKENS)[:, 1:])
    proposal = SimpleNamespace(draft_block=block)

    assert chains.foresee_block(proposal, None, batch=given, bs=2) is proposal
    assert not given.sampling_info.has_custom_logit_processor
    chains.begin(verify_input(), given)
    dspark(chains, given, None)  # a graph accepts, and returns no logits
    assert (steps.asked, steps.calls, steps.verified) == (1, [], None)


def test_a_step_that_is_skipped_copies_and_edits_nothing():
    steps, given = Steps(skips=True), batch()
    chains = ChainSteps(steps)
    verified = SimpleNamespace(draft_token_num=WIDTH)
    chains.begin(verified, given)
    dflash(chains, given, None)  # ranks exchange the likeliest tokens, and gather no logits

    assert (steps.asked, steps.calls, steps.verified) == (1, [], None)


@accepts
def test_sglangs_own_calls_are_left_out_until_a_verify_step_is_over(monkeypatch, accept):
    steps, given, ran = RealSteps(PendingResults()), batch(), []
    monkeypatch.setattr(steps, "_step", lambda *given: ran.append(given))
    monkeypatch.setattr(steps._batch, "step_asleep", lambda *_, **__: False)
    given.sampling_info.custom_params = [None]
    chains, logits = ChainSteps(steps), torch.zeros(1, 5)
    chains.begin(verify_input(), given)
    steps.run(logits, given.sampling_info, WIDTH)
    steps.run(logits, given.sampling_info, 1)
    accept(chains, given, torch.zeros(WIDTH, 5))
    steps.run(logits, given.sampling_info)
    assert not ran
    steps.end_step()
    steps.run(logits, given.sampling_info)

    assert len(ran) == 1


@pytest.mark.parametrize("drawn", [None, (torch.tensor([[[1], [2]]]), torch.ones(1, 2, 1) / 2)])
def test_known_tokens_are_verified_and_seen_and_were_drafted_for_certain(monkeypatch, drawn):
    known = KnownDrafts(
        torch.tensor([[90, -1], [-1, 91]]), torch.tensor([[True, False], [False, True]])
    )
    monkeypatch.setattr(chains_module, "foresee", lambda _batch, drafted: known)
    steps, given, verified = Steps(), batch(), verify_input()
    given.spec_algorithm.is_dflash = lambda: True
    chains, worker = ChainSteps(steps), SimpleNamespace(_selector_sample=drawn)
    chains.begin(verified, given)
    candidates = verified.draft_token.view(-1, WIDTH)
    chains.accept_block(
        worker, candidates=candidates, next_token_logits="", sampling_info=given.sampling_info
    )

    assert candidates.tolist() == [[10, 90, 12], [20, 21, 91]]
    assert steps.calls[0][-1]().token_ids == candidates.tolist()
    if drawn is not None:
        assert worker._selector_sample[0].flatten(1).tolist() == [[90, 2], [1, 91]]
        assert worker._selector_sample[1].flatten(1).tolist() == [[1, 0.5], [0.5, 1]]


def test_chains_are_not_copied_as_trees():
    given = SimpleNamespace(**vars(batch()), spec_info=verify_input())
    before = dict(vars(given.spec_info))
    TreeSteps(Steps()).capture(None, None, given, is_verify=True)

    assert vars(given.spec_info) == before
