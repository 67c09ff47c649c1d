"""V2 classes of vLLM: slots that stay with their requests."""

import pytest
import torch

from sglang_lp.adapters import EngineSettings, adapt, load
from sglang_lp.errors import InvalidParameter
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import Batch, Played, decode, step

VOCAB = 32


def foreign(name):
    return load("support.processors.foreign", name, "test")


def adapted(cls, slots=8):
    made = adapt(foreign(cls) if isinstance(cls, str) else cls)
    made.begin(EngineSettings(vocab_size=VOCAB, max_requests=slots, max_length=64))
    return made


def falling(histories):
    """Return logits by which the smallest ids would come first."""
    return -torch.arange(VOCAB).repeat(len(histories), 1).float()


def test_history_on_the_device_is_exact_whoever_is_in_the_batch():
    cls, batch = adapted("NoRepeatV2"), Batch()
    asking = [Played(cls, {"penalty": 99.0}, [i] * (i + 1)) for i in range(4)]
    declined, plain = Played(cls, {}, [3]), Played(None, {}, [3])
    schedule = [
        [asking[0], declined],
        [asking[1]],
        [asking[1], asking[0], plain, declined],
        [asking[3], asking[2]],
        [*asking, declined, plain],
        [asking[2], asking[0]],
        [*asking[::-1]],
    ]
    for played in schedule:
        for one, token_id in zip(played, step(batch, falling, played), strict=True):
            one.source.append(token_id)

    for one in asking:
        assert one.output == [*range(len(one.output))]
    assert {*declined.output, *plain.output} == {0}


def test_a_request_with_output_is_added_with_it():
    cls, batch = adapted("NoRepeatV2"), Batch()
    one = Played(cls, {"penalty": 99.0}, [7, 7])
    for token_id in (0, 1, 2):
        one.source.append(token_id)
    assert decode(batch, falling, [one], 2) == [[0, 1, 2, 3, 4]]
    step(batch, falling, [one])
    one.retract()
    assert decode(batch, falling, [one], 2) == [[0, 1, 2, 3, 4, 5, 6]]


def test_slots_are_used_again_and_those_of_waiting_requests_lent():
    cls, batch = adapted("NoRepeatV2", slots=2), Batch()
    played = [Played(cls, {"penalty": 99.0}, [3]) for _ in range(3)]
    for pair in ([0, 1], [1, 2], [0, 2], [2, 1], [0], [0, 1], [2]):
        some = [played[i] for i in pair]
        for one, token_id in zip(some, step(batch, falling, some), strict=True):
            one.source.append(token_id)
    for one in played:
        assert one.output == [0, 1, 2, 3][: len(one.output)]
    for _ in range(5):
        decode(batch, falling, [Played(cls, {"penalty": 99.0}, [3])], 2)


def test_parameters_are_validated_and_faults_ended():
    cls = adapted("NoRepeatV2")
    with pytest.raises(InvalidParameter, match="penalty must be a positive float, got 1"):
        cls.fit_params(cls.parse_params({"penalty": 1}), ServedModel())

    class Fails(foreign("NoRepeatV2")):
        def apply(self, logits, ctx):
            if (self.penalty[ctx.expanded_idx_mapping.long()] == 13.0).any():
                raise RuntimeError("thirteen")
            return super().apply(logits, ctx)

    cls, batch = adapted(Fails), Batch()
    good, bad = Played(cls, {"penalty": 99.0}, [3]), Played(cls, {"penalty": 13.0}, [3])
    decode(batch, falling, [bad, good], 3)
    assert good.output == [0, 1, 2]
    assert bad.output == []
    assert "Fails (vllm-v2) failed at token 0: 'RuntimeError: thirteen'" in bad.error
