"""Processors on beams, with SGLang's own selection, against a search in plain Python and float64.

No engine: a function of the history is the model, and the test plays SGLang's scheduler, with or
without overlap.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.beam_search import coordinator
from sglang.srt.beam_search.beam_group import BeamGroup, BeamGroupState
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, FINISH_MATCHED_TOKEN

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    ChoiceLogitProcessor,
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DisallowedTokensLogitsProcessor,
    MinLengthLogitProcessor,
)
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler.beams import results, steps
from sglang_lp.server.scheduler.gate import SchedulerGate
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.trust import Policy
from support.fakes.requests import Req
from support.oracles.beams import search
from support.oracles.greedy import rule

VOCAB_SIZE = 24
PROMPT = [3, 4]
LENGTH = 7


def model(histories):
    """Return rows of logits that depend on the whole history."""
    return torch.stack([_row(tuple(history)) for history in histories])


def _row(history):
    generator = torch.Generator().manual_seed(hash(history) % (1 << 31))
    return torch.randn(VOCAB_SIZE, generator=generator, dtype=torch.float64) * 2


class Played:
    """A beam search of one request, played as SGLang's scheduler does.

    Args:
        processor: Class of the processor; ``None`` for none.
        params: Its parameters.
        width: Number of beams.
        stops: Token ids that end an answer.
        overlap: Whether a step is launched before the step before is committed.
    """

    def __init__(self, processor, params, *, width, stops=(), overlap=False, length=LENGTH):
        self.req = Req(prompt=PROMPT)
        self.group = self.req.beam_group = BeamGroup(
            beam_width=width, stop_token_ids=stops, max_new_tokens=length
        )
        self.group.leader = self.req
        self.steps = steps.BeamSteps()
        self.seen = []
        if processor is not None:
            self._admit(processor, params, width)
        self._play(overlap=overlap)

    def _admit(self, processor, params, width):
        req = self.req
        req.custom_logit_processor = processor.to_str()
        req.sampling_params.custom_params = {**params, "__req__": req}
        req.sampling_params.beam_width = width
        guard = (
            Guard(Policy(processors=[f"{__name__}:{processor.__qualname__}"]))
            if (processor.__module__ == __name__)
            else Guard(Policy.default())
        )
        guard.vocab_size = req.vocab_size = VOCAB_SIZE
        SchedulerGate(guard, PendingResults(), Arrivals()).admit_req(None, req)
        assert req.ended is None, req.ended
        assert steps.attach(lambda *_: None, None, req, None) is None
        (self.row,) = rows_of([req.sampling_params.custom_params])

    def _play(self, *, overlap):
        group, histories, tick = self.group, [[*PROMPT]], 0
        while not group.retired:
            if group.state == BeamGroupState.DECODING and group.num_generated < LENGTH + 2:
                histories = self._launch(histories, tick)
            self._commit(tick - 1 if overlap else tick)
            tick += 1
            assert tick < LENGTH + 5
        self.output = SimpleNamespace(
            sequences=[SimpleNamespace(finish_reason={}) for _ in group.final_results]
        )
        results.tell(self.output, self.req)

    def _launch(self, histories, tick):
        group = self.group
        logits = model(histories).float()
        first = len(histories) == 1 and not group.num_generated
        tail = None
        if not first:
            entry = SimpleNamespace(group=group, leader_idx=0, start=0, end=len(histories) - 1)
            tail = SimpleNamespace(num_base_rows=1, entries=[entry])
        batch = SimpleNamespace(beam_tail=tail, reqs=[self.req])
        forward = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: first))
        self.steps.edit(batch, forward, SimpleNamespace(next_token_logits=logits))
        self.seen.append(logits)
        found = coordinator._rows_topk_logprobs([logits[:1], logits[1:]], group.num_candidates)
        args = (None, group, *found, tick)
        scored = steps.score(*args)
        args = args if scored is None else scored[0]
        tokens, parents = coordinator.BeamCoordinator._select_group(*args)
        if parents is None:  # the overshoot step of a search that is over
            return histories
        return [
            [*histories[parent], token]
            for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)
        ]

    def _commit(self, tick):
        group, req = self.group, self.req
        if tick < 0:
            return
        batch = SimpleNamespace(reqs=[req])
        steps.end_failed(None, batch)
        if req.to_finish is not None:
            group.state, group.final_results = BeamGroupState.FINISHED, []
            req.finished_reason, req.to_finish = req.to_finish, None
        elif group.commit_pending(tick):
            group.final_results = group.finalize()
            token = group.final_results[0].matched_token
            req.finished_reason = (
                FINISH_LENGTH(group.num_committed) if token is None else FINISH_MATCHED_TOKEN(token)
            )
        else:
            return
        group.retired = True
        results.finish(None, None, group)

    @property
    def answers(self):
        return [(one.tokens, one.beam_score) for one in self.group.final_results]


@pytest.fixture(autouse=True)
def growing(monkeypatch):
    """Hook SGLang's group as the table of hooks does."""
    original = BeamGroup.advance_frontier

    def advance_frontier(group, sel, tick=0):
        steps.grow(group, sel, tick)
        original(group, sel, tick)

    monkeypatch.setattr(BeamGroup, "advance_frontier", advance_frontier)
    monkeypatch.setattr(BeamGroup, "retired", False, raising=False)


CASES = [
    (DisallowedTokensLogitsProcessor, {"token_ids": [*range(5)]}),
    (DisallowedTokensLogitsProcessor, {"token_ids": [*range(3, 24)]}),
    (MinLengthLogitProcessor, {"min_tokens": 4, "eos_token_ids": [1, 5, 6]}),
    (BadWordsLogitProcessor, {"token_ids": [7, 8, 9, 9, 3], "lengths": [1, 2, 2]}),
    (DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 1, "window_size": 50}),
    (DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 2, "window_size": 50}),
    (
        ChoiceLogitProcessor,
        {"token_ids": [4, 5, 6, 4, 5, 7, 7, 8], "lengths": [3, 4, 1], "eos_token_ids": [1]},
    ),
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("processor", "params"), CASES)
@pytest.mark.parametrize("stops", [[], [1, 5]])
def test_answers_are_those_of_a_search_in_float64(processor, params, stops, overlap):
    for width in (2, 3, 8, 12):
        done = rule(processor, params, forced=0.0)
        expected = search(model, PROMPT, done, width=width, length=LENGTH, stops=stops)
        played = Played(processor, params, width=width, stops=stops, overlap=overlap)

        assert [tokens for tokens, _ in played.answers] == [one.tokens for one in expected]
        scores = [score for _, score in played.answers]
        assert scores == pytest.approx([one.score for one in expected], abs=1e-4)
        assert all(map(math.isfinite, scores))
