"""Texts under a decoder that takes back byte tokens, with a model that tries to make it do so.

Oracle: the tokenizer's decoding of the whole output.
"""

import random
import re
from itertools import takewhile

import pytest

from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    ForcedSequenceLogitProcessor,
    ForcedWordsLogitProcessor,
    TriggerPhraseLogitProcessor,
)
from sglang_lp.testing import ProcessorContract, run
from support.models.vocabularies import byte_fallback

PIECES = ["▁", "c", "a", "t", "s", ".", "x", "ca", "cat", "▁c", "▁ca", "▁cat", "at", "é", "ß"]
TOKENIZER = byte_fallback(PIECES)
TOKENIZER.add_special_tokens(["<|tool|>"])
VOCAB_SIZE = TOKENIZER.get_vocab_size()
END = 0
ROUNDS = 60


def bytes_of(text):
    return [1 + byte for byte in text]


#: A special token that does not end an answer: it has no text, and runs of bytes go on after it.
TOOL = VOCAB_SIZE - 1
#: What the model wants to write next: characters in either kind of token, parts of some, the end.
WANTED = [
    *(TOKENIZER.encode(text).ids for text in ("cat", " cat", " ", ".", "x", "at", "é", "s")),
    *(bytes_of(text.encode()) for text in ("ñ", "ñ", "😀", "é", "cat", " ", "c", "at", "🎉")),
    *map(bytes_of, (b"\xff", b"\xc3", b"\xf0\x9f", b"\x80")),
    [END],
]
#: The same with tokens without text, which a forced text, that counts positions, does not see.
AND_TOOL = [*WANTED, [TOOL, 1 + 0xFF], [TOOL]]


def decoded(processor, params, some, steps, goals=AND_TOOL):
    """Return the tokens of an answer up to its end, and whether it ended."""
    wanted = []

    def model(_token_ids):
        if not wanted:
            wanted.extend(some.choice(goals))
        logits = [some.random() for _ in range(TOOL)] + [0.0]
        for token_id in bytes_of(b"\xff\xc3\xb1a\xf0"):  # if it may not have what it wants
            logits[token_id] += 1
        logits[wanted.pop(0)] = 3
        return logits

    token_ids = run(
        processor,
        params,
        [300],
        model,
        steps=steps,
        vocab_size=VOCAB_SIZE,
        tokenizer=TOKENIZER,
        eos_token_ids={END},
    ).token_ids
    return [*takewhile(END.__ne__, token_ids)], END in token_ids


def answers(processor, some_params, steps=30, goals=AND_TOOL):
    """Yield parameters and texts of answers to them, and whether those ended."""
    for seed in range(ROUNDS):
        some = random.Random(seed)
        params = some_params(some)
        token_ids, ended = decoded(processor, params, some, steps, goals)
        yield params, TOKENIZER.decode(token_ids), ended


class _WithByteFallback(ProcessorContract):
    tokenizer = TOKENIZER
    vocab_size = VOCAB_SIZE
    eos_token_ids = (END,)
    token_ids = TOKENIZER.encode("cat ñ😀").ids


class TestForcedText(_WithByteFallback):
    processor = ForcedSequenceLogitProcessor
    valid_params = ({"text": "cat ñ"}, {"text": "😀", "eos_token_ids": [END]}, {"text": "cat"})


class TestForcedWords(_WithByteFallback):
    processor = ForcedWordsLogitProcessor
    valid_params = ({"words": ["ñ", "😀"]}, {"words": ["cat ñ"], "within_tokens": 9})


class TestTrigger(_WithByteFallback):
    processor = TriggerPhraseLogitProcessor
    valid_params = (
        {"trigger": "ñ", "phrase": "😀", "max_times": 3},
        {"trigger_token_ids": [255], "phrase": "ñ"},
        {"phrase": "ñ"},
    )


class TestWholeWords(_WithByteFallback):
    processor = BadWordsLogitProcessor
    valid_params = (
        {"words": ["cat", "ñ"], "whole_words": True},
        {"words": ["ñ"], "whole_words": True, "ignore_case": True, "across_prompt": True},
    )


def test_the_decoder_takes_back_what_was_right():
    text = TOKENIZER.encode("aña").ids

    assert TOKENIZER.decode(text) == "aña"
    assert TOKENIZER.decode([*text[:-1], 1 + 0xFF]) == "a���"


def test_a_forced_text_stands():
    def some_params(some):
        return {"text": some.choice(["ñ", "cat 😀", "😀🎉", " cat", "ñ cat"])}

    played = answers(ForcedSequenceLogitProcessor, some_params, steps=12, goals=WANTED)

    lost = [said for params, said, _ in played if not said.startswith(params["text"])]
    assert not lost


def some_words(some):
    return some.sample(["ñ", "cat 😀", "😀🎉", "at", "é", "catñ", "c", "🎉"], some.randint(1, 3))


def test_an_answer_that_ends_holds_the_words():
    def some_params(some):
        return {"words": some_words(some)}

    played = answers(ForcedWordsLogitProcessor, some_params, steps=60)
    ended = [(params["words"], said) for params, said, ended in played if ended]

    lost = [(words, said) for words, said in ended if not all(word in said for word in words)]
    assert not lost
    assert len(ended) > ROUNDS // 4


@pytest.mark.parametrize("room", [0, 1, 8])
def test_the_words_are_there_in_time(room):
    lost = []
    for seed in range(ROUNDS // 2):
        some = random.Random(seed)
        words = some_words(some)
        within = sum(len(TOKENIZER.encode(word).ids) for word in words) + room
        params = {"words": words, "within_tokens": within}
        token_ids, _ = decoded(ForcedWordsLogitProcessor, params, some, within)
        said = TOKENIZER.decode(token_ids)
        lost += [(word, said) for word in words if word not in said]
    assert not lost


def comes_out(trigger, token_ids):
    """Tell whether a client gets a trigger, with or without the names of special tokens."""
    said = (TOKENIZER.decode(token_ids, skip_special_tokens=skip) for skip in (True, False))
    return any(trigger in text for text in said)


def test_a_phrase_follows_each_trigger_that_comes_out():
    lost, found = [], 0
    for seed in range(ROUNDS):
        some = random.Random(seed)
        trigger, phrase = some.choice("añt."), some.choice(["😀", " cat", "x ñ"])
        params = {"trigger": trigger, "phrase": phrase, "max_times": 2}
        token_ids, _ = decoded(TriggerPhraseLogitProcessor, params, some, 40)
        length = len(TOKENIZER.encode(phrase).ids)
        for _ in range(2):
            ends = range(1, len(token_ids) - length + 1)
            end = next((n for n in ends if comes_out(trigger, token_ids[:n])), None)
            if end is None:
                break
            found += 1
            before, said = map(TOKENIZER.decode, (token_ids[:end], token_ids))
            lost += [] if said.startswith(before + phrase) else [(trigger, phrase, said)]
            token_ids = token_ids[end + length :]
    assert not lost
    assert found > ROUNDS // 2


def test_a_phrase_comes_before_the_end():
    def some_params(some):
        return {"phrase": some.choice(["😀", "😀x", "x ñ", "ñ"])}

    played = answers(TriggerPhraseLogitProcessor, some_params, steps=60)
    ended = [(params["phrase"], said) for params, said, ended in played if ended]

    lost = [(phrase, said) for phrase, said in ended if phrase not in said]
    assert not lost
    assert len(ended) > ROUNDS // 4


@pytest.mark.parametrize("ignore_case", [False, True])
def test_no_word_comes_out_as_a_whole_word(ignore_case):
    def some_params(some):
        words = some.sample(["cat", "a", "ñ", "at", "c a", "é", "cat😀", "cat at"], 2)
        return {"words": words, "whole_words": True, "ignore_case": ignore_case}

    lost = []
    for params, said, ended in answers(BadWordsLogitProcessor, some_params):
        pattern = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in params["words"])
        lost += [said] if re.search(pattern, said if ended else f"{said}x") else []
    assert not lost


@pytest.mark.parametrize("before", [[], bytes_of(b"\xca")])
def test_a_ban_takes_a_byte_token_for_its_byte_in_a_broken_run_as_well(before):
    byte, piece = *bytes_of(b"s"), TOKENIZER.token_to_id("s")
    params = {"words": ["s"]}
    for wanted in (byte, piece):
        token_ids = run(
            BadWordsLogitProcessor,
            params,
            [300],
            [*before, wanted],
            steps=len(before) + 1,
            vocab_size=VOCAB_SIZE,
            tokenizer=TOKENIZER,
            eos_token_ids={END},
        ).token_ids
        assert token_ids[:-1] == before
        assert token_ids[-1] not in {byte, piece}
    assert TOKENIZER.decode([*before, byte]) == ("\ufffd" * 2 if before else "s")
