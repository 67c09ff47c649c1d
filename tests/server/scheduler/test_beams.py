"""Processors on beams, with SGLang's own selection, against a search in plain Python and float64.

No engine: a function of the history is the model, and the test plays SGLang's scheduler, with or
without overlap.
"""

from __future__ import annotations

import gc
import math
import weakref
from array import array
from types import SimpleNamespace

import orjson
import pytest
import torch
from sglang.srt.beam_search import coordinator
from sglang.srt.beam_search.beam_group import BeamGroup, BeamGroupState
from sglang.srt.beam_search.joint_select import SelectResult
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, FINISH_MATCHED_TOKEN

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.compiled.edits import WIDE
from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.clock import clock
from sglang_lp._engine.step import Step
from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    ChoiceLogitProcessor,
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DisallowedTokensLogitsProcessor,
    MinLengthLogitProcessor,
)
from sglang_lp.edits.ids import lasting
from sglang_lp.edits.recording import Recording
from sglang_lp.links import Serving, prepare
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.beams import results, steps
from sglang_lp.server.scheduler.beams.beam_host import BeamHost
from sglang_lp.server.scheduler.beams.candidates import left_tokens
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sglang_host import SglangHost
from sglang_lp.wire.names import REPORT
from support.fakes.gpu import FakeGpu
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

    def __init__(self, processor, params, *, width, stops=(), overlap=False, resumed=0):
        self.begin(processor, params, width, stops, resumed)
        self.steps = steps.BeamSteps()
        self._play(overlap=overlap)

    def begin(self, processor, params, width, stops=(), resumed=0):
        self.req = Req(prompt=PROMPT)
        self.group = self.req.beam_group = BeamGroup(
            beam_width=width, stop_token_ids=stops, max_new_tokens=LENGTH
        )
        self.group.leader = self.req
        if processor is not None:
            self._admit(processor, params, width, resumed)

    def _admit(self, processor, params, width, resumed):
        req = self.req
        served = ServedModel.of(None, VOCAB_SIZE, [1])
        servings = prepare(processor(), params, served)
        host = BeamHost(req, PendingResults(), [processor.__name__])
        host.resumed = resumed
        given = {**params, "__req__": req}
        attach_row(given, servings, host)
        req.sampling_params.custom_params = given
        req.sampling_params.beam_width = width
        assert steps.attach(lambda *_: None, None, req, None) is None

    def _play(self, *, overlap):
        group, histories, tick = self.group, [[*PROMPT]], 0
        while not group.retired:
            if group.state == BeamGroupState.DECODING and group.num_generated < LENGTH + 2:
                histories = self._launch(histories, tick)
            self._commit(tick - 1 if overlap else tick)
            tick += 1
            assert tick < LENGTH + 5
        self.output = None
        if group.final_results:  # as SGLang packs them
            answers = [SimpleNamespace(finish_reason={}) for _ in group.final_results]
            self.output = SimpleNamespace(sequences=answers)
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
        pieces = [logits[:1], logits[1:]]
        found = steps.defer(coordinator._rows_topk_logprobs, pieces, group.num_candidates)
        args, _ = steps.score(None, group, *found, tick)
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
        steps.end_failed(SimpleNamespace(_num_live_groups=1), batch)
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


@pytest.mark.parametrize("overlap", [False, True])
def test_resumed_tokens_are_the_beginning_of_every_beam(overlap):
    banned = {"token_ids": [PROMPT[-1], 7, 7, 8], "lengths": [2, 2]}
    done = rule(BadWordsLogitProcessor, banned)

    def resumed(prompt, history, row):
        return done(prompt[:-1], [prompt[-1], *history], row)

    expected = search(model, PROMPT, resumed, width=8, length=LENGTH)
    played = Played(BadWordsLogitProcessor, banned, width=8, overlap=overlap, resumed=1)

    assert [tokens for tokens, _ in played.answers] == [one.tokens for one in expected]
    assert all(tokens[0] != 7 for tokens, _ in played.answers)


class AllowsFew(LogitProcessor):
    """Allow few tokens, which depend on the last token; after some, many tokens or one twice."""

    def edit(self, request, edits):
        last = request.output_ids[-1] if request.output_ids else 4
        edits.allow_only(few_after(last))


def few_after(last):
    if last % 5 == 0:
        return [*range(2, 20)]
    return [last, last] if last == 7 else [*range(1, 3 + last % 4)]


def few(_prompt, history, row):
    row = row.clone()
    left = few_after(history[-1] if history else 4)
    row[[token for token in range(VOCAB_SIZE) if token not in left]] = float("-inf")
    return row


class WeighsFew(AllowsFew):
    """Score beams among the tokens that it allows."""

    renormalizes = True


def few_weighed(prompt, history, row):
    return few(prompt, history, row).log_softmax(-1)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stops", [[], [0, 2]])
@pytest.mark.parametrize(("processor", "rule"), [(AllowsFew, few), (WeighsFew, few_weighed)])
def test_beams_of_few_tokens_are_ranked_without_masks_as_others_are_with(
    processor, rule, stops, overlap, monkeypatch
):
    ranked = []
    rank = steps.rank
    monkeypatch.setattr(steps, "rank", lambda *args: ranked.append(args) or rank(*args))
    for width in (2, 3, 8, 12):
        expected = search(model, PROMPT, rule, width=width, length=LENGTH, stops=stops)
        played = Played(processor, {}, width=width, stops=stops, overlap=overlap)

        assert [tokens for tokens, _ in played.answers] == [one.tokens for one in expected]
        scores = [score for _, score in played.answers]
        assert scores == pytest.approx([one.score for one in expected], abs=1e-4)
    assert ranked


@pytest.mark.parametrize(("count", "is_ranked"), [(WIDE - 1, True), (WIDE, False)])
def test_a_wide_list_of_all_beams_is_masked_once_and_not_copied_for_each(count, is_ranked):
    """A step of 64 beams with 37,000 tokens each took the host 23 ms, and 0.8 ms with masks."""
    shared = lasting(range(count))
    own = [lasting(range(count)) for _ in range(4)]

    def left(lists):
        step = Step(torch.zeros(4, 8 * WIDE), [row] * 4, [None] * 4, (), 1, 0)
        for place, ids in enumerate(lists):
            step.edits[place] = recording = Recording(step.vocab_size)
            recording.allow_only(ids)
        return left_tokens(step, range(4))

    row = attach_row({}, [Serving(Steers(), None)])
    assert (left([shared] * 4) is not None) == is_ranked
    assert left(own) is not None


class Steers(LogitProcessor):
    """Force a token after the token 7, and ban some after an even token."""

    def edit(self, request, edits):
        if not request.output_ids:
            return
        last = request.output_ids[-1]
        if last == 7:
            edits.force(8)
        elif last % 2 == 0:
            edits.ban([last, 7])


def steered(_prompt, history, row):
    row = row.clone()
    if history and history[-1] == 7:
        row[:] = float("-inf")
        row[8] = 0.0
    elif history and history[-1] % 2 == 0:
        row[[history[-1], 7]] = float("-inf")
    return row


@pytest.mark.parametrize("overlap", [False, True])
def test_each_answer_has_the_report_of_its_own_tokens(overlap):
    played = Played(Steers, {}, width=12, stops=[5], overlap=overlap)
    expected = search(model, PROMPT, steered, width=12, length=LENGTH, stops=[5])

    assert [tokens for tokens, _ in played.answers] == [one.tokens for one in expected]
    kinds = set()
    for beam, sequence in zip(expected, played.output.sequences, strict=True):
        report = orjson.loads(sequence.finish_reason[REPORT])
        before = [None, *beam.tokens[:-1]]
        forced = {at for at, last in enumerate(before) if last == 7}
        edited = {at for at, last in enumerate(before) if last is not None and last % 2 == 0}
        assert report["processors"] == ["Steers"]
        assert {at for span in report["forced_at"] for at in range(*span)} == forced
        assert {at for span in report["edited"] for at in range(*span)} == edited
        kinds |= {bool(forced), bool(edited)}
    assert kinds == {True, False}


class Fails(LogitProcessor):
    """Raise, or end the answer, in one beam of several at the third token."""

    class Params(Parameters, frozen=True):
        last: int
        ends: bool = False

    def edit(self, request, edits):
        if request.position == 2 and request.output_ids[-1] == request.params.last:
            if request.params.ends:
                edits.finish("enough")
                return
            raise ValueError("no")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("ends", "status"), [(False, 500), (True, 400)])
def test_what_fails_in_one_beam_ends_the_request_with_its_status(overlap, ends, status):
    free = Played(None, {}, width=4, overlap=overlap)
    last = free.answers[-1][0][1]
    played = Played(Fails, {"last": last, "ends": ends}, width=4, overlap=overlap)

    assert played.answers == []
    assert played.req.finished_reason.status_code == status
    report = orjson.loads(played.req.finished_reason.to_json()[REPORT])
    assert report["processors"] == ["Fails"]
    never = Played(Fails, {"last": -1}, width=4, overlap=overlap)
    assert never.answers == free.answers


class EndsAndFails(LogitProcessor):
    """Leave stop tokens only at the third token, and fail behind the end."""

    needs = History.POSITION

    def edit(self, request, edits):
        if request.position == 2:
            edits.allow_only([1, 5])
        elif request.position > 2:
            raise ValueError("behind the end")


@pytest.mark.parametrize("overlap", [False, True])
def test_what_fails_behind_the_end_of_all_beams_fails_nothing(overlap):
    played = Played(EndsAndFails, {}, width=4, stops=[1, 5], overlap=overlap)

    assert len(played.answers) == 4
    assert all(len(tokens) == 3 and tokens[-1] in {1, 5} for tokens, _ in played.answers)


@pytest.mark.parametrize("kind", [SglangHost, BeamHost])
def test_a_request_of_a_session_is_edited_whatever_its_beam_width(kind):
    """SGLang ignores ``beam_width`` there."""

    def row_of(processor, params, output):
        req = Req(prompt=PROMPT, output=output)
        req.kv.kv_committed_len = len(PROMPT) + len(output)
        req.sampling_params.beam_width = 2
        servings = prepare(processor(), params, ServedModel.of(None, VOCAB_SIZE, [1]))
        given = {**params, "__req__": req}
        return (
            req,
            given,
            attach_row(given, servings, kind(req, PendingResults())),
        )

    reqs, given, rows = zip(
        row_of(BadWordsLogitProcessor, {"token_ids": [7, 8], "lengths": [2]}, [2, 7]),
        row_of(Fails, {"last": 5}, [2, 5]),
        row_of(Fails, {"last": 5, "ends": True}, [2, 5]),
        strict=True,
    )
    logits = torch.zeros(3, VOCAB_SIZE)
    Batch().step(logits, rows, given)

    assert logits.isinf().nonzero().tolist() == [[0, 8]]
    assert [vars(req).get("sglang_lp_endings") is None for req in reqs] == [True, False, False]


@pytest.mark.parametrize("overlap", [False, True])
def test_beams_that_leave_no_token_end_the_request(overlap):
    params = {"token_ids": [*range(VOCAB_SIZE)]}
    played = Played(DisallowedTokensLogitsProcessor, params, width=2, overlap=overlap)

    assert played.answers == []
    assert played.req.finished_reason.status_code == 500  # as for any other class that fails


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["Beams", "_placed", "_grow", "release"])
def test_a_failure_of_the_toolkit_ends_the_search_with_an_error(name, overlap, monkeypatch):
    def fail(*_args):
        raise MemoryError("no room")

    monkeypatch.setattr(results if name == "release" else steps, name, fail)
    played = Played(Steers, {}, width=3, overlap=overlap)

    assert played.answers == []
    assert played.req.finished_reason.status_code == 500


def test_the_rows_of_a_search_go_with_it():
    played = Played(Steers, {}, width=3)

    assert steps.beams_of(played.group) is None
    assert played.req.custom_logit_processor is None


def test_a_fork_does_not_wake_batches_of_other_requests():
    one = Played.__new__(Played)
    one.begin(Steers, {}, 3)
    row = steps.beams_of(one.group).leader
    before = clock.version
    row.fork(row.host, array("q"))

    assert clock.version == before


def test_rows_go_with_their_search_and_its_request_with_the_next_step(monkeypatch):
    kept = []
    release = results.release

    def watched(group):
        kept.extend(weakref.ref(row) for row in steps.beams_of(group).tree.rows if row)
        return release(group)

    monkeypatch.setattr(results, "release", watched)
    played = Played(Steers, {}, width=3)
    running, req = played.steps, weakref.ref(played.req)
    assert kept
    del played
    gc.collect()
    assert [row() for row in kept] == [None] * len(kept)

    batch = SimpleNamespace(beam_tail=None, reqs=[SimpleNamespace(beam_group=None)])
    forward = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: False))
    running.edit(batch, forward, SimpleNamespace(next_token_logits=torch.zeros(1, VOCAB_SIZE)))
    gc.collect()
    assert req() is None


def test_a_prefill_of_other_requests_wakes_no_beam():
    one = Played.__new__(Played)
    one.begin(DisallowedTokensLogitsProcessor, {"token_ids": [3]}, 3)
    running, logits = steps.BeamSteps(), torch.zeros(1, VOCAB_SIZE)
    forward = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: True))
    prefill = SimpleNamespace(beam_tail=None, reqs=[one.req])
    running.edit(prefill, forward, SimpleNamespace(next_token_logits=logits))
    kept = running._custom_params
    others = SimpleNamespace(beam_tail=None, reqs=[SimpleNamespace(beam_group=None)])
    running.edit(others, forward, SimpleNamespace(next_token_logits=logits))
    running.edit(prefill, forward, SimpleNamespace(next_token_logits=logits))

    assert kept
    assert running._custom_params is kept


@pytest.mark.parametrize("searches", [1, 5])
@pytest.mark.parametrize(
    ("processor", "params", "most_kernels"),
    [
        (DisallowedTokensLogitsProcessor, {"token_ids": [3]}, 15),
        (MinLengthLogitProcessor, {"min_tokens": 4, "eos_token_ids": [1]}, 15),
        # Edits nothing at this step.
        (MinLengthLogitProcessor, {"min_tokens": 1, "eos_token_ids": [1]}, 0),
    ],
)
def test_without_tokens_a_step_never_waits_for_the_device(
    processor, params, most_kernels, searches
):
    width, gpu, running = 8, FakeGpu(), steps.BeamSteps()
    batch = SimpleNamespace(beam_tail=SimpleNamespace(num_base_rows=searches, entries=[]), reqs=[])
    for index in range(searches):
        one = Played.__new__(Played)
        one.begin(processor, params, width)
        start = index * (width - 1)
        batch.beam_tail.entries.append(
            SimpleNamespace(group=one.group, leader_idx=index, start=start, end=start + width - 1)
        )
        batch.reqs.append(one.req)
    logits = gpu.tensor(searches * width, VOCAB_SIZE)
    scores, ends = gpu.tensor(width), gpu.tensor(2 * width)
    numbers = [gpu.tensor(width, dtype=torch.int64) for _ in range(2)]
    count = gpu.tensor(1, dtype=torch.int64)
    with gpu.counting():
        for entry in batch.beam_tail.entries:
            sel = SelectResult(numbers[0], numbers[1], scores, count, ends, ends, ends, count)
            steps.grow(entry.group, sel)
            entry.group.num_generated = 1
        assert gpu.waits == 0
        assert sum(gpu.kernels.values()) <= 22 * searches
        gpu.clear()
        running.edit(batch, None, SimpleNamespace(next_token_logits=logits))
        assert gpu.waits == 0
        assert sum(gpu.kernels.values()) <= most_kernels

    assert [steps.beams_of(req.beam_group).search.goes_on for req in batch.reqs] == [
        True
    ] * searches
