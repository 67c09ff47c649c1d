"""Transformers' own processors give the tokens that ``generate`` gives with them."""

import pytest
import torch
from transformers.generation import logits_process

from sglang_lp.adapters import adapt
from sglang_lp.errors import InvalidParameter, PolicyError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import Batch, Played, decode
from support.models.tiny_model import EOS, FREQUENT, VOCAB_SIZE

PROMPTS = [[*range(300, 312)], [*FREQUENT] * 3]
STEPS = 12
#: Class -> arguments of the request, arguments of the operator, what ``generate``'s object gets.
CASES = [
    (
        "EncoderNoRepeatNGramLogitsProcessor",
        {"encoder_ngram_size": 2, "encoder_input_ids": [*FREQUENT]},
        {},
    ),
    (
        "EncoderRepetitionPenaltyLogitsProcessor",
        {"penalty": 3.0, "encoder_input_ids": [*range(300, 400)]},
        {},
    ),
    ("EpsilonLogitsWarper", {"epsilon": 0.02}, {}),
    ("EtaLogitsWarper", {"epsilon": 0.02}, {}),
    ("ExponentialDecayLengthPenalty", {"exponential_decay_length_penalty": [3, 1.4]}, {}),
    ("ForcedBOSTokenLogitsProcessor", {"bos_token_id": 300}, {}),
    ("ForcedEOSTokenLogitsProcessor", {"max_length": 20}, {}),
    ("InfNanRemoveLogitsProcessor", {}, {}),
    ("LogitNormalization", {}, {}),
    ("MinLengthLogitsProcessor", {"min_length": 20, "eos_token_id": [EOS, *FREQUENT]}, {}),
    ("MinNewTokensLengthLogitsProcessor", {"min_new_tokens": 8}, {}),
    ("MinPLogitsWarper", {"min_p": 0.3}, {}),
    ("NoBadWordsLogitsProcessor", {}, {"bad_words_ids": [[FREQUENT[0]], [*FREQUENT[1:3]]]}),
    ("NoRepeatNGramLogitsProcessor", {"ngram_size": 2}, {}),
    ("RepetitionPenaltyLogitsProcessor", {"penalty": 1.7}, {}),
    ("SequenceBiasLogitsProcessor", {}, {"sequence_bias": [[[400], 9.0], [[400, 401], 30.0]]}),
    ("SuppressTokensAtBeginLogitsProcessor", {"begin_suppress_tokens": [*FREQUENT]}, {}),
    ("SuppressTokensLogitsProcessor", {"suppress_tokens": [*FREQUENT]}, {}),
    (
        "SynthIDTextWatermarkLogitsProcessor",
        {"ngram_len": 3, "keys": [1, 2, 3], "sampling_table_size": 64},
        {"sampling_table_seed": 0, "context_history_size": 32},
    ),
    ("TemperatureLogitsWarper", {"temperature": 0.5}, {}),
    ("TopHLogitsWarper", {"top_h": 0.5}, {}),
    ("TopKLogitsWarper", {"top_k": 3}, {}),
    ("TopPLogitsWarper", {"top_p": 0.4}, {}),
    ("TypicalLogitsWarper", {"mass": 0.3}, {}),
    ("WatermarkLogitsProcessor", {"greenlist_ratio": 0.4, "bias": 6.0}, {"vocab_size": VOCAB_SIZE}),
]
#: What the server knows of a request, where the class asks for it.
NEEDS_EOS = {"ExponentialDecayLengthPenalty", "ForcedEOSTokenLogitsProcessor"} | {
    "MinNewTokensLengthLogitsProcessor"
}
NEEDS_LENGTH = {
    "ExponentialDecayLengthPenalty": "input_ids_seq_length",
    "MinNewTokensLengthLogitsProcessor": "prompt_length_to_skip",
    "SuppressTokensAtBeginLogitsProcessor": "begin_index",
}


@pytest.mark.parametrize(("name", "params", "fixed"), CASES, ids=[case[0] for case in CASES])
def test_answers_are_those_of_generate(name, params, fixed, transformers):
    foreign = getattr(logits_process, name)
    params = {**params, **({"eos_token_id": EOS} if name in NEEDS_EOS else {})}
    device = (
        {"device": "cpu"}
        if name in {"SynthIDTextWatermarkLogitsProcessor", "WatermarkLogitsProcessor"}
        else {}
    )
    expected = []
    for prompt in PROMPTS:
        length = {NEEDS_LENGTH[name]: len(prompt)} if name in NEEDS_LENGTH else {}
        given = params
        if "encoder_input_ids" in params:
            given = {**params, "encoder_input_ids": torch.tensor([params["encoder_input_ids"]])}
        original = foreign(**given, **fixed, **length, **device)
        expected.append(transformers.generate(original, prompt, STEPS))

    adapted = adapt(foreign, arguments=fixed)
    played = [Played(adapted, params, prompt, vocab_size=VOCAB_SIZE) for prompt in PROMPTS]

    assert decode(Batch(), transformers.logits, played, STEPS, EOS) == expected


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ClassifierFreeGuidanceLogitsProcessor", "the logits of a second, unconditional request"),
        (
            "DiaClassifierFreeGuidanceLogitsProcessor",
            "the logits of a second, unconditional request",
        ),
        ("PrefixConstrainedLogitsProcessor", "a function"),
        ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "the model itself"),
        ("WhisperNoSpeechDetection", "the model itself"),
        ("WhisperTimeStampLogitsProcessor", "Whisper.s configuration of generate"),
    ],
)
def test_a_class_that_can_never_work_is_refused_at_start_up(name, why):
    with pytest.raises(PolicyError, match=f"{name}: cannot work in a server: it needs {why}"):
        adapt(getattr(logits_process, name))


def test_a_class_that_brings_what_is_missing_is_served():
    class Even(logits_process.PrefixConstrainedLogitsProcessor):
        def __init__(self):
            super().__init__(lambda _batch, tokens: [2 * (len(tokens) % 2)], 1)

    adapt(Even)


@pytest.mark.parametrize("given", ["5, 6", 5, [], ["a"], [1.5]])
def test_what_an_encoder_read_is_a_list_of_token_ids(given):
    cls = adapt(logits_process.EncoderNoRepeatNGramLogitsProcessor)
    params = cls.parse_params({"encoder_ngram_size": 2, "encoder_input_ids": given})

    with pytest.raises(
        InvalidParameter, match=r"encoder_input_ids of .*expected a list of token id"
    ):
        cls.fit_params(params, ServedModel())
