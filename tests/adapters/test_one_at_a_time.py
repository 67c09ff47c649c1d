"""Classes that take one request at a time: an exact history, one call for each position."""

import pytest
import torch

from sglang_lp.adapters import EngineSettings, ForcedTokenSequenceSpec, adapt, load
from sglang_lp.builtins import ForcedSequenceLogitProcessor
from sglang_lp.errors import InvalidParameter, PolicyError, RequestError, Unsupported
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import Batch, Played, decode, run, step

VOCAB = 32
EOS = 1


def foreign(name):
    return load("support.processors.foreign", name, "test")


def adapted(name, interface=None, **settings):
    cls = adapt(foreign(name), interface, **settings)
    cls.begin(EngineSettings(vocab_size=VOCAB))
    return cls


def flat(histories):
    """Return logits by which token 9 would come."""
    logits = torch.zeros(len(histories), VOCAB)
    logits[:, 9] = 1.0
    return logits


#: Each forces 5, 6, 7 by counting its calls.
COUNTING = [
    ("Counted", None, {"first": 5}),
    ("DynamoForced", "dynamo", {"token_ids": [5, 6, 7], "eos_token_id": EOS}),
    ("Spelled", "vllm-request", {"tokens": [5, 6, 7]}),
    ("SpelledAdapter", None, {"tokens": [5, 6, 7]}),
]
IDS = ["transformers", "dynamo", "callable", "adapter"]


@pytest.mark.parametrize(("name", "interface", "params"), COUNTING, ids=IDS)
def test_a_request_keeps_its_object_whoever_else_is_in_the_batch(name, interface, params):
    cls, batch = adapted(name, interface), Batch()
    first, second, none = (Played(cls, params, [3, 4]) for _ in range(3))
    third = Played(None, {}, [2])
    batches = [[first], [third, first], [second], [second, third, first], [none, second]]
    for played in batches:
        for one, token_id in zip(played, step(batch, flat, played), strict=True):
            one.source.append(token_id)

    assert first.output == [5, 6, 7]
    assert second.output == [5, 6, 7]
    assert none.output == [5]
    assert third.output == [9, 9]


@pytest.mark.parametrize(("name", "interface", "params"), COUNTING, ids=IDS)
def test_a_position_that_is_sampled_again_is_not_counted_twice(name, interface, params):
    cls, batch = adapted(name, interface), Batch()
    one, other = Played(cls, params, [3, 4]), Played(cls, params, [3])
    for dropped in (True, False, True, False, False):
        token_ids = step(batch, flat, [one, other] if other.output == [] else [one])
        if dropped:
            one.retract()
        else:
            one.source.append(token_ids[0])

    assert one.output == [5, 6, 7]


@pytest.mark.parametrize(("name", "interface", "params"), COUNTING, ids=IDS)
def test_decode_apart_from_prefill_goes_on_where_prefill_ended(name, interface, params):
    one = Played(adapted(name, interface), params, [3, 4])
    one.source.append(5)

    assert decode(Batch(), flat, [one], 2) == [[5, 6, 7]]


def test_generation_only_leaves_prefill_servers_alone_and_begins_on_the_others():
    settings = {"token_ids": [5, 6], "eos_token_id": EOS}
    cls = adapt(foreign("DynamoForced"), "dynamo", generation_only=True)
    cls.begin(EngineSettings(vocab_size=VOCAB, decodes=False))
    assert decode(Batch(), flat, [Played(cls, settings, [3])], 1) == [[9]]

    cls.begin(EngineSettings(vocab_size=VOCAB))
    one = Played(cls, settings, [3])
    one.source.append(9)
    assert decode(Batch(), flat, [one], 2) == [[9, 5, 6]]


def test_a_function_of_prompt_and_output_runs_alone():
    played = [Played(adapted("echo"), {}, prompt) for prompt in ([4, 5, 6], [7])]

    assert decode(Batch(), flat, played, 4) == [[4, 5, 6, 4], [7, 7, 7, 7]]


def test_pad_values_of_images_do_not_reach_the_class():
    played = Played(adapted("echo"), {}, [4, 1_000_000, 5])

    assert decode(Batch(), flat, [played], 3) == [[4, 5, 4]]


def test_an_adapter_that_makes_nothing_for_a_request_leaves_its_row():
    assert decode(Batch(), flat, [Played(adapted("SpelledAdapter"), {}, [3])], 2) == [[9, 9]]


def test_a_list_of_transformers_is_one_class():
    import transformers

    cls = adapted("Polite")
    t = run(
        cls,
        {"penalty": 1.5},
        [3, 9],
        lambda tokens: flat([tokens])[0].tolist(),
        steps=4,
        vocab_size=VOCAB,
    )
    own = transformers.LogitsProcessorList(foreign("Polite")(1.5))
    tokens = [3, 9]
    for row in t.logits:
        assert torch.equal(own(torch.tensor([tokens]), flat([tokens]))[0], row)
        tokens.append(int(row.argmax()))


def test_logits_of_another_type_are_computed_in_float32():
    seen = []

    class Looks:
        def __call__(self, input_ids, scores):
            seen.append((scores.dtype, tuple(scores.shape), tuple(input_ids.shape)))
            return scores + 0.5

    played = Played(adapt(Looks, "transformers"), {}, [3, 4, 5])
    logits = flat([[3]]).bfloat16()
    Batch().step(logits, [played.row], [played.custom_params])

    assert seen == [(torch.float32, (1, VOCAB), (1, 3))]
    assert logits.dtype is torch.bfloat16
    assert logits[0, 9] == 1.5


FAULTS = {
    "raises": "ZeroDivisionError",
    "exits": "SystemExit",
    "shape": "expected a tensor of floats of shape",
    "dtype": "expected a tensor of floats of shape",
    "nothing": "it returned NoneType",
    "nan": "left NaN or",
    "all masked": "left no finite logit",
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_ends_its_own_request(how):
    cls, batch = adapted("Misbehaving"), Batch()
    bad = Played(cls, {"how": how}, [3, 4])
    good = [Played(cls, {"how": how}, [3]), Played(adapted("Counted"), {"first": 5}, [3])]
    decode(batch, flat, [good[0], bad, good[1]], 3)

    assert [one.output for one in good] == [[9, 9, 9], [5, 6, 7]]
    assert bad.output == [9, 9]
    assert "support.processors.foreign:Misbehaving (transformers) failed at token 2" in bad.error
    assert FAULTS[how] in bad.error


def test_arguments_are_checked_at_admission():
    cls = adapt(foreign("Misbehaving"))
    with pytest.raises(InvalidParameter, match="refuses them: 'no way'"):
        cls.fit_params(cls.parse_params({"how": "made"}), ServedModel())
    with pytest.raises(InvalidParameter, match=r"^how of .*: required, but not given"):
        cls.fit_params(cls.parse_params({}), ServedModel())
    with pytest.raises(InvalidParameter, match="unknown parameter 'hwo'; its parameters: how"):
        cls.fit_params(cls.parse_params({"how": "x", "hwo": 1}), ServedModel())
    with pytest.raises(RequestError, match="finite number"):
        cls.parse_params({"how": float("nan")})
    with pytest.raises(RequestError, match="flat lists"):
        cls.parse_params({"how": [[1]]})
    with pytest.raises(RequestError, match="expected an object"):
        cls.parse_params([1])


def test_token_ids_of_another_model_are_refused():
    cls = adapted("DynamoForced", "dynamo")
    for params in (
        {"token_ids": [VOCAB], "eos_token_id": 1},
        {"token_ids": [1], "eos_token_id": -1},
    ):
        with pytest.raises(InvalidParameter, match="token ids of the served model, 0 to 31"):
            cls.parse_params(params, VOCAB)


def test_what_the_operator_and_the_server_set_no_request_changes():
    class Wants:
        def __init__(self, tokenizer, low=0, high=9):
            self.got = tokenizer, low, high

        def __call__(self, input_ids, scores):
            return scores

    cls = adapt(Wants, "transformers", {"low": 4})
    cls.fit_params(cls.parse_params({"high": 3}), ServedModel(object()))
    for key in ("low", "tokenizer"):
        with pytest.raises(InvalidParameter, match="sets it; leave it out"):
            cls.fit_params(cls.parse_params({key: 1}), ServedModel(object()))
    with pytest.raises(Unsupported, match="needs the tokenizer"):
        cls.fit_params(cls.parse_params({}), ServedModel())
    with pytest.raises(PolicyError, match="it takes no 'lov'; it takes tokenizer, low, high"):
        adapt(Wants, "transformers", {"lov": 4})


def test_an_entry_of_dynamo_is_a_forced_sequence_by_position():
    entry = {"kind": "forced_sequence", "token_ids": [5, 6], "eos_token_id": EOS}
    played = Played(ForcedTokenSequenceSpec, entry, [3])
    assert decode(Batch(), flat, [played], 4, EOS) == [[5, 6, EOS]]
    assert issubclass(ForcedTokenSequenceSpec, ForcedSequenceLogitProcessor)
    for wrong in ({"kind": "python"}, {"token_ids": []}, {"eos_token_id": None}):
        with pytest.raises(InvalidParameter):
            ForcedTokenSequenceSpec.parse_params(entry | wrong)
