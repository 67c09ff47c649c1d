"""V1 classes of vLLM: their batch is that of an engine as vLLM describes it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.adapters import EngineSettings, adapt, load
from sglang_lp.adapters.vllm_v1 import Member, ObjectBatch
from sglang_lp.errors import InvalidParameter, PolicyError, RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import Batch, Played, decode, step

VOCAB = 32


def foreign(name):
    return load("support.processors.foreign", name, "test")


def adapted(cls):
    made = adapt(foreign(cls) if isinstance(cls, str) else cls)
    made.begin(EngineSettings(vocab_size=VOCAB))
    return made


def flat(histories):
    logits = torch.zeros(len(histories), VOCAB)
    logits[:, 9] = 1.0
    return logits


def sampling(temperature=0.0):
    from sglang.srt.sampling.sampling_params import SamplingParams

    params = SamplingParams(temperature=temperature, max_new_tokens=20)
    params.normalize(None)
    return params


class Model:
    """A class that keeps its requests by row, by the letter of vLLM's documentation.

    Removed, added, moved, in this order; a row that is written to must be empty or about to be.
    """

    def __init__(self):
        self.rows = {}

    def update(self, removed, added, moved, size):
        assert removed == sorted(removed, reverse=True)
        written = [index for index, _ in added]
        assert not {*removed} & {*written}, "vLLM's own classes lose a row that is in both"
        for index in removed:
            del self.rows[index]
        for index, request in added:
            self.rows[index] = request
        for source, target in moved:
            assert source > target
            self.rows[target] = self.rows.pop(source)
        assert sorted(self.rows) == [*range(size)]


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 11), max_size=12), st.randoms(use_true_random=False)),
        max_size=12,
    )
)
def test_updates_make_every_row_that_of_its_request(steps):
    batch, model, alive = ObjectBatch(), Model(), {}
    for numbers, rng in steps:
        order = sorted(numbers)
        rng.shuffle(order)
        alive = {number: alive.get(number) or Member(number, None) for number in order}
        members = [alive[number] for number in order]
        change = batch.change(members)
        model.update(change.removed, change.added, change.moved, len(members))

        for member in members:
            assert model.rows[batch.index[member.serial]] is member


def test_the_lowest_freed_row_is_filled_first_and_gaps_from_the_end():
    batch = ObjectBatch()
    one, two, three, four, five = (Member(name, None) for name in "abcde")
    assert batch.change([one, two, three, four]).added == [
        (i, m) for i, m in enumerate([one, two, three, four])
    ]

    assert batch.change([two, four, five]) == ([], [(0, five)], [(3, 2)])
    assert batch.change([two]) == ([2], [], [(1, 0)])


# Whole requests


def test_each_request_gets_what_it_asked_for_whoever_joins_and_leaves():
    target, cycle = adapted("TargetToken"), adapted("Alternating")
    batch = Batch()
    repeats = [Played(target, {"target_token": 3 + i}, [2] * (i + 1)) for i in range(4)]
    turns = [Played(cycle, {"cycle": [20 + i, 5, 6]}, [2]) for i in range(3)]
    plain, opted_out = Played(None, {}, [2]), Played(target, {}, [2])
    schedule = [
        [repeats[0], turns[0]],
        [repeats[1], turns[1], opted_out],  # a prefill, while the others wait
        [turns[1], repeats[0], plain, repeats[1], turns[0]],
        [repeats[3], repeats[2], turns[2]],
        [*repeats, *turns, plain, opted_out],
        [repeats[3], turns[2], turns[0], repeats[1]],
        [*turns[::-1], *repeats[::-1]],
    ]
    for played in schedule:
        for one, token_id in zip(played, step(batch, flat, played), strict=True):
            one.source.append(token_id)

    for i, one in enumerate(repeats):
        assert {*one.output} == {3 + i}
    for i, one in enumerate(turns):
        assert one.output == ([20 + i, 5, 6] * 3)[: len(one.output)]
    assert {*plain.output, *opted_out.output} == {9}


def test_a_retracted_request_is_added_anew_with_its_output():
    calls = []

    class Watches(foreign("Alternating")):
        def update_state(self, batch_update):
            for index, _, prompt, output in batch_update.added if batch_update else ():
                calls.append((index, prompt, [*output]))
            super().update_state(batch_update)

    cls, batch = adapted(Watches), Batch()
    one = Played(cls, {"cycle": [5, 6, 7]}, [2, 3])
    for dropped in (False, True, False, False):
        (token_id,) = step(batch, flat, [one])
        if dropped:
            one.retract()
        else:
            one.source.append(token_id)

    assert one.output == [5, 6, 7]
    assert calls == [(0, [2, 3], []), (0, [2, 3], [5])]


def test_update_state_is_called_at_every_step_and_gets_none_without_a_change():
    seen = []

    class Watches(foreign("Alternating")):
        def update_state(self, batch_update):
            seen.append(batch_update)
            super().update_state(batch_update)

    cls, batch = adapted(Watches), Batch()
    played = [Played(cls, {"cycle": [5, 6]}, [2]) for _ in range(3)]
    decode(batch, flat, played, 3)
    step(batch, flat, played[::-1])

    assert [update is None for update in seen] == [False, True, True, True]
    assert seen[0].batch_size == 3


def test_an_argmax_invariant_class_is_left_out_of_greedy_batches_and_comes_after_temperature():
    cls = adapted("MinP")
    (first, _) = cls._objects
    greedy = [Played(cls, {"share": 0.5}, [2], sampling=sampling()) for _ in range(2)]
    decode(Batch(), flat, greedy, 3)
    assert first.processor.applied == 0

    hot = Played(cls, {"share": 0.5}, [2], sampling=sampling(4.0))
    logits = flat([[2]])
    expected = logits[0].clone()
    Batch().step(logits, [hot.row], [hot.custom_params])
    probabilities = (expected / 4.0).softmax(-1)
    kept = probabilities >= 0.5 * probabilities.amax()

    assert not (expected.softmax(-1) >= 0.5 * expected.softmax(-1).amax()).all()
    assert kept.all()
    assert torch.equal(logits[0] > -torch.inf, kept)
    assert torch.allclose(logits[0][kept], expected[kept])


def test_sampling_params_are_those_of_the_request():
    seen = []

    class Asks(foreign("TargetToken")):
        def update_state(self, batch_update):
            seen.extend(params for _, params, _, _ in batch_update.added)

    played = Played(adapted(Asks), {"vllm_xargs": {"a": 1}, "b": [2]}, [2], sampling=sampling(0.7))
    step(Batch(), flat, [played])
    (params,) = seen

    assert params.extra_args == {"a": 1, "b": [2]}
    assert (params.temperature, params.max_tokens, params.top_k) == (0.7, 20, 0)
    assert sampling().top_k == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"vllm_xargs": {"a": 1}, "a": 2}, "'a' is given inside it and outside; give it once"),
        ({"vllm_xargs": "a"}, "expected an object of parameters, got 'a'"),
        ({"vllm_xargs": [1]}, "expected an object of parameters, got list of 1"),
    ],
)
def test_what_is_given_twice_or_as_no_object_is_refused(given, why):
    with pytest.raises(RequestError, match=f"vllm_xargs: {why}"):
        adapted("TargetToken").parse_params(given)


def test_validate_params_speaks_at_admission():
    cls = adapted("TargetToken")
    with pytest.raises(InvalidParameter, match=r"TargetToken \(vllm-v1\).*value x is not int"):
        cls.fit_params(cls.parse_params({"target_token": "x"}), ServedModel())


class Unprintable(RuntimeError):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (AssertionError("only odd numbers"), "only odd numbers"),
        (AttributeError(), "AttributeError"),
        (SystemExit(3), "3"),
        (Unprintable(), "Unprintable"),
    ],
    ids=repr,
)
def test_whatever_validate_params_raises_is_a_refusal(raised, said):
    class Asserts(foreign("TargetToken")):
        @classmethod
        def validate_params(cls, params):
            raise raised

    cls = adapted(Asserts)
    with pytest.raises(InvalidParameter, match=f"the class refuses them: .*{said}"):
        cls.fit_params(cls.parse_params({}), ServedModel())


@pytest.mark.parametrize(("bad", "why"), [(13, "thirteen"), (14, "left")])
def test_a_fault_ends_the_request_that_it_can_be_attributed_to(bad, why):
    cls, batch = adapted("MisbehavingV1"), Batch()
    played = [Played(cls, {"cycle": [first, 6, 7]}, [2]) for first in (5, bad, 8)]
    decode(batch, flat, played, 6)

    assert [len(one.output) for one in played] == [6, 2, 6]
    assert played[0].output == [5, 6, 7] * 2
    assert played[2].output == [8, 6, 7] * 2
    assert "support.processors.foreign:MisbehavingV1 (vllm-v1) failed at token 2" in played[1].error
    assert why in played[1].error


def test_rows_of_requests_without_the_class_are_not_touched():
    class Floods(foreign("Alternating")):
        def apply(self, logits):
            logits.fill_(-1.0)
            return logits

    other, one = Played(None, {}, [2]), Played(adapted(Floods), {"cycle": [5]}, [2])
    logits = flat([[2], [2]])
    Batch().step(logits, [other.row, one.row], [other.custom_params, one.custom_params])

    assert torch.equal(logits[0], flat([[2]])[0])
    assert (logits[1] == -1.0).all()


def test_what_a_class_cannot_have_is_named_when_the_server_starts():
    class Greedy(foreign("Alternating")):
        def __init__(self, vllm_config, device, is_pin_memory):
            self.limit = vllm_config.cache_config

    with pytest.raises(PolicyError, match="vllm_config has no cache_config on SGLang; it has"):
        adapted(Greedy)


def test_the_object_keeps_no_finished_request_alive_in_its_batch():
    members, batch = [Member(i, None) for i in range(3)], ObjectBatch()
    batch.change(members)
    assert batch.waiting == 3
    del members
    assert batch.waiting == 0


def test_dicts_are_updated_as_vllm_updates_them():
    update = foreign("process_dict_updates")
    batch_update = foreign("BatchUpdate")
    moves = foreign("MoveDirectionality")

    def after(entries, **changes):
        changes = {"removed": [], "added": [], "moved": []} | changes
        changed = update(
            entries, batch_update(batch_size=9, **changes), lambda params, _p, _o: params
        )
        return entries, changed

    one, swap = moves.UNIDIRECTIONAL, moves.SWAP
    assert update({1: "a"}, None, None) is False
    assert after({1: "a"}, added=[(1, None, None, [])]) == ({}, True)
    assert after({1: "a", 3: "b"}, moved=[(3, 1, one)]) == ({1: "b"}, True)
    assert after({1: "a"}, moved=[(3, 1, one)]) == ({}, True)
    assert after({1: "a", 3: "b"}, moved=[(1, 3, swap)]) == ({1: "b", 3: "a"}, True)
    assert after({1: "a"}, moved=[(1, 3, swap)]) == ({3: "a"}, True)
    assert after({1: "a"}, moved=[(3, 1, swap)]) == ({3: "a"}, True)
    assert after({1: "a"}, moved=[(1, 1, swap), (1, 1, one)])[0] == {1: "a"}
    assert after({1: 0}, removed=[1]) == ({}, False)
    assert after({1: "a"}, removed=[1], added=[(1, "b", None, [])]) == ({}, True)
