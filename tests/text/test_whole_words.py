"""Words that never come out as whole words, against trying every token at every step."""

import random
import unicodedata

import pytest
import torch

from sglang_lp.builtins import BadWordsLogitProcessor
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract
from sglang_lp.text.utf8 import lacking, unfinished
from sglang_lp.text.vocabulary import Vocabulary, vocabulary_of
from sglang_lp.text.whole_words import WholeWords
from support.models.vocabularies import byte_level, tokens_of

TOKENIZER = byte_level(["the cat sat on the mat, the cats; die Straße, Straßen — 不是 😀"] * 9, 300)
VOCAB_SIZE = 320
END = 0

#: Letters and others of one to four bytes, some with a beginning in common.
LETTERS = "abAéÉ\u00d7ßsS\u0301İi€\u2160😀\U0001d400 -_1"


def is_letter(character):
    return unicodedata.category(character)[0] in "LMN" or character in "_\u200c\u200d"


def can_become_letter(beginning):
    """Try every way to finish a character."""
    ways = [beginning]
    for _ in range(lacking(beginning)):
        ways = [way + bytes([byte]) for way in ways for byte in range(0x80, 0xC0)]
    for way in ways:
        try:
            if is_letter(way.decode()):
                return True
        except UnicodeDecodeError:
            pass
    return False


KNOWN = {}


def holds(text, words, *, ignore_case, ended):
    """Say by definition whether a text holds a whole word, whatever may follow it."""
    tail = text[len(text) - unfinished(text) :]
    said = text[: len(text) - len(tail)].decode(errors="replace")
    if tail and tail not in KNOWN:
        KNOWN[tail] = can_become_letter(tail)
    # What follows is open only at the very end, or if it can still become a letter.
    last = "!" if ended or (tail and not KNOWN[tail]) else "a"
    if ignore_case:
        said, words = said.casefold(), [word.casefold() for word in words]
    said = f"!{said}{last}"
    return any(
        not is_letter(said[start - 1]) and not is_letter(said[start + len(word)])
        for word in words
        for start in range(1, len(said) - len(word))
        if said.startswith(word, start)
    )


def some_vocabulary(some):
    letters = some.sample(LETTERS, some.randint(3, 6))
    tokens = tokens_of(some, letters, some.randint(5, 30), 5)
    words = ["".join(some.choices(letters, k=some.choice([1, 1, 2, 2, 3]))) for _ in range(3)]
    return tokens, tuple(words)


@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_exactly_the_tokens_that_make_a_whole_word_are_banned(seed, ignore_case):
    some, after_words, parts = random.Random(seed), 0, 0
    for _ in range(120):
        tokens, words = some_vocabulary(some)
        try:
            banned = WholeWords(Vocabulary(tokens), words, ignore_case=ignore_case)
        except RequestError:
            continue
        said, end = b"", banned.start
        for _ in range(9):
            wrong = {
                token_id
                for token_id, token in enumerate(tokens)
                if token and holds(said + token, words, ignore_case=ignore_case, ended=False)
            }
            every = {token_id for token_id, token in enumerate(tokens) if token}
            after = banned.after_word(end, len(tokens))
            try:
                found = {*banned.always, *banned.completing(end), *(after or ())}
            except RequestError:
                found = every
            assert found == wrong, (words, said, [tokens[i] for i in found ^ wrong])
            ended = holds(said, words, ignore_case=ignore_case, ended=True)
            assert (after is not None) == ended
            after_words += ended
            parts += ended and unfinished(said) > 0
            left = [*(every - wrong)]
            if not left:
                break
            ends = {token_id: banned.step(end, token_id) for token_id in left}
            if some.random() < 0.5:
                left = [max(left, key=lambda token_id: len(ends[token_id]))]
            token_id = some.choice(left)
            said, end = said + tokens[token_id], ends[token_id]
    assert after_words > 50
    assert parts > 1


class TestContract(ProcessorContract):
    processor = BadWordsLogitProcessor
    valid_params = (
        {"words": ["cat", "the"], "whole_words": True},
        {"words": ["STRASSE", "不"], "whole_words": True, "ignore_case": True},
        {"words": ["cat"], "whole_words": True, "across_prompt": True, "eos_token_ids": [5]},
    )
    invalid_params = (
        ({"token_ids": [1], "lengths": [1], "whole_words": True}, "whole_words"),
        ({"token_ids": [1], "lengths": [1], "eos_token_ids": [5]}, "eos_token_ids"),
    )
    tokenizer = TOKENIZER
    eos_token_ids = (END,)
    token_ids = TOKENIZER.encode(" the cat, Straße 不是 cats").ids


def banned_after(text, words, prompt="", **more):
    prompt_ids = TOKENIZER.encode(prompt).ids or [END]
    request = FakeRequest(
        prompt_ids, TOKENIZER.encode(text).ids, tokenizer=TOKENIZER, eos_token_ids={END}
    )
    custom_params = request.custom_params({"words": words, "whole_words": True, **more})
    row = BadWordsLogitProcessor()(torch.zeros(1, VOCAB_SIZE), [custom_params])[0]
    return {*(row == -torch.inf).nonzero()[:, 0].tolist()}


def token(text):
    return vocabulary_of(TOKENIZER).tokens.index(text.encode())


def test_after_a_word_only_a_letter_may_come_and_no_end():
    banned = banned_after("the cat", ["cat"])

    assert {END, token(" "), token(","), token("-")} <= banned
    assert token("s") not in banned
    assert token("_") not in banned
    assert token("1") not in banned


def test_a_longer_word_is_no_reason():
    assert not {END, token(" ")} & banned_after("the cats", ["cat"])
    assert not {END, token(" ")} & banned_after("concat", ["cat"])


def test_a_word_that_begins_in_the_prompt_counts_only_if_asked():
    for across in (False, True):
        banned = banned_after("at", ["cat"], prompt="the c", across_prompt=across)
        assert (END in banned) == across
    # The character before the answer is a letter only if the prompt counts.
    for across in (False, True):
        banned = banned_after("cat", ["cat"], prompt="con", across_prompt=across)
        assert (END in banned) != across


def test_end_tokens_are_those_of_the_model_or_of_the_request():
    assert {5} & banned_after("cat", ["cat"], eos_token_ids=[5])
    params = BadWordsLogitProcessor.parse_params({"words": ["cat"], "whole_words": True})
    with pytest.raises(InvalidParameter, match="eos_token_ids"):
        BadWordsLogitProcessor.fit_params(params, ServedModel(TOKENIZER, VOCAB_SIZE))


def test_an_end_is_refused_with_the_word_in_the_message():
    tokens = [b"a", b" ", b"b"]
    banned = WholeWords(Vocabulary(tokens), ("a", "ab", "aa"), ignore_case=False)
    end = banned.step(banned.step(banned.start, 0), 0)

    assert {*banned.completing(end), *banned.after_word(end, 3)} == {1}
    only = WholeWords(Vocabulary([b"a", b" ", b" a "]), ("a",), ignore_case=False)
    assert [*only.always] == [2]
