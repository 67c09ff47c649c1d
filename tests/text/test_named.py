"""Special tokens in texts, against the tokenizer's own decode with and without them."""

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    BadWordsLogitProcessor,
    ChoiceLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ForcedWordsLogitProcessor,
    TriggerPhraseLogitProcessor,
)
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest
from support.models.vocabularies import one_token_a_byte

NAMES = "<|im_start|>", "<|im_end|>", "[INST]"
TOKENIZER = one_token_a_byte(*NAMES)
SPECIAL = {name: TOKENIZER.token_to_id(name) for name in NAMES}
EOS = SPECIAL["<|im_end|>"]
VOCAB = 400
#: The tokens that are tried: letters of the names and the special tokens.
USED = [*(TOKENIZER.token_to_id(char) for char in "<|>[]IimstarHx_"), *SPECIAL.values()]
words = st.lists(
    st.sampled_from(
        [
            "<|im_start|>",
            "im_start",
            "start|>Hi",
            "Hi<|im",
            "<|",
            "im",
            "H<",
            "xH",
            "[",
            "T]x",
            "St",
        ]
    ),
    min_size=1,
    max_size=3,
    unique=True,
)


def texts(token_ids):
    """Return the texts that a client may get, as the tokenizer decodes them."""
    return [TOKENIZER.decode(token_ids, skip_special_tokens=skip) for skip in (True, False)]


def holds(token_ids, banned, *, ignore_case=False):
    said = texts(token_ids)
    if ignore_case:
        said, banned = [one.casefold() for one in said], [one.casefold() for one in banned]
    return any(word in one for one in said for word in banned)


def row_of(processor, request, custom_params):
    return processor()(torch.zeros(1, VOCAB), [custom_params])[0]


@pytest.mark.parametrize("keeps_ends", [False, True])
@given(words, st.booleans(), st.integers(0, 1 << 30))
def test_no_word_is_in_a_text_that_a_client_may_get_and_nothing_else_is_banned(
    keeps_ends, banned, ignore_case, seed
):
    some = random.Random(seed)
    request = FakeRequest([], tokenizer=TOKENIZER, eos_token_ids=[EOS])
    request.sampling_params = SimpleNamespace(ignore_eos=keeps_ends)
    params = request.custom_params({"words": banned, "ignore_case": ignore_case})
    for _ in range(8):
        row = row_of(BadWordsLogitProcessor, request, params)
        allowed = []
        for token_id in USED:
            after = [*request.output_ids, token_id]
            is_end = token_id == EOS and not keeps_ends
            wrong = not is_end and holds(after, banned, ignore_case=ignore_case)
            assert (row[token_id] == -torch.inf) == wrong, texts(after)
            if not wrong and not is_end:
                allowed.append(token_id)
        request.append(some.choice(allowed))


@given(st.integers(0, 1 << 30))
def test_no_whole_word_is_in_a_text_that_a_client_may_get(seed):
    some = random.Random(seed)
    request = FakeRequest([], tokenizer=TOKENIZER, eos_token_ids=[EOS])
    params = request.custom_params({"words": ["im", "st", "im_start"], "whole_words": True})
    for _ in range(10):
        row = row_of(BadWordsLogitProcessor, request, params)
        token_id = some.choice([one for one in USED if row[one] != -torch.inf and one != EOS])
        request.append(token_id)
    for text in texts([*request.output_ids[:-1], TOKENIZER.token_to_id("<")]):
        spaced = "".join(char if char.isalnum() or char == "_" else " " for char in text)
        # The last token may begin a word that goes on.
        assert not {"im", "st", "im_start"} & {*spaced.split()[:-1]}


@pytest.mark.parametrize("keeps_ends", [False, True])
def test_a_special_token_whose_name_contains_a_text_is_disallowed(keeps_ends):
    request = FakeRequest([], tokenizer=TOKENIZER, eos_token_ids=[EOS])
    request.sampling_params = SimpleNamespace(no_stop_trim=keeps_ends)
    custom_params = request.custom_params({"texts": ["im_"]})

    row = row_of(DisallowedTokensLogitsProcessor, request, custom_params)

    banned = (row == -torch.inf).nonzero().flatten().tolist()
    assert banned == sorted([SPECIAL["<|im_start|>"], *([EOS] if keeps_ends else [])])


def test_a_special_token_is_allowed_by_its_name():
    params = AllowedTokensLogitProcessor.parse_params({"texts": ["[INST]"]})

    fitted = AllowedTokensLogitProcessor.fit_params(params, ServedModel(TOKENIZER, VOCAB))

    assert fitted.token_ids == (SPECIAL["[INST]"],)


@given(
    st.lists(st.sampled_from(USED), max_size=12),
    st.sampled_from(["<|im_start|>", "start|>H", "x[", "im", "Hi"]),
)
def test_a_trigger_fires_in_a_text_that_a_client_may_get(token_ids, trigger):
    request = FakeRequest([], tokenizer=TOKENIZER, eos_token_ids=[EOS])
    phrase = TOKENIZER.token_to_id("!")
    custom_params = request.custom_params({"trigger": trigger, "phrase_token_ids": [phrase]})
    for place, token_id in enumerate(token_ids):
        row_of(TriggerPhraseLogitProcessor, request, custom_params)
        request.append(token_id)
        came = holds(token_ids[: place + 1], [trigger])
        row = row_of(TriggerPhraseLogitProcessor, request, custom_params)
        assert ((row == 0).sum() == 1 and row[phrase] == 0) == came
        if came:
            return


@pytest.mark.parametrize(
    ("processor", "name", "params"),
    [
        (ForcedSequenceLogitProcessor, "text", {"text": "a<|im_start|>b"}),
        (ForcedWordsLogitProcessor, "words", {"words": ["a", "[INST]"]}),
        (ChoiceLogitProcessor, "choices", {"choices": ["a", "a[INST]"]}),
        (TriggerPhraseLogitProcessor, "phrase", {"trigger": "a", "phrase": "[INST]"}),
    ],
)
def test_a_text_to_be_written_that_contains_a_special_token_is_refused(processor, name, params):
    with pytest.raises(InvalidParameter, match=rf"^{name} of .*contains the token"):
        prepare(processor(), params, ServedModel(TOKENIZER, VOCAB, (EOS,)))
