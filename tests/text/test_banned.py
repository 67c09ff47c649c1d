"""Texts that never come out, against trying every token at every step."""

import codecs
import random
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.errors import RequestError
from sglang_lp.text.banned import BannedTexts
from sglang_lp.text.utf8 import SHRINKS, folded
from sglang_lp.text.vocabulary import Vocabulary
from support.models.vocabularies import tokens_of

#: Among them letters of one, two and three bytes, whose cases have other lengths or other numbers
#: of letters.
LETTERS = "abAéÉßẞsS\u017fİiKk€ 😀ﬁf\0"


def holds(text, words, *, ignore_case):
    """Say by definition whether a text holds a word."""
    if not ignore_case:
        return any(word.encode() in text for word in words)
    said = text.decode(errors="replace").casefold()
    return any(word.casefold() in said for word in words)


def some_vocabulary(some):
    """Return tokens that spell every text of a few letters, cut wherever it happens to be."""
    letters = some.sample(LETTERS, some.randint(2, 6))
    tokens = tokens_of(some, letters, some.randint(0, 25), 5)
    words = [
        "".join(some.choices(letters, k=some.choice([1, 2, 2, 3, 3, 4, 9, 12])))
        for _ in range(some.randint(1, 6))
    ]
    return tokens, tuple(words)


on_vocabularies = pytest.mark.parametrize(
    ("seed", "ignore_case"), [*product(range(4), [False, True])]
)


def banned_after(banned, end, tokens):
    """Return the ids of the banned tokens; all with text, where it says that nothing is left."""
    try:
        return {*banned.always, *banned.completing(end)}
    except RequestError:
        return {token_id for token_id, token in enumerate(tokens) if token}


@on_vocabularies
def test_exactly_the_tokens_that_complete_a_text_are_banned(seed, ignore_case):
    some, completed = random.Random(seed), 0
    for _ in range(250):
        tokens, words = some_vocabulary(some)
        if all(holds(token, words, ignore_case=ignore_case) for token in tokens if token):
            with pytest.raises(RequestError, match="something to write"):
                BannedTexts(Vocabulary(tokens), words, ignore_case=ignore_case)
            continue
        banned = BannedTexts(Vocabulary(tokens), words, ignore_case=ignore_case)
        said = end = b""
        for _ in range(8):
            completing = {
                token_id
                for token_id, token in enumerate(tokens)
                if holds(said + token, words, ignore_case=ignore_case)
            }
            assert banned_after(banned, end, tokens) == completing
            completed += len(completing) > len(banned.always)
            left = [token_id for token_id in range(len(tokens)) if token_id not in completing]
            if not left:
                break
            # Half the time on towards a word.
            ends = {token_id: banned.step(end, token_id) for token_id in left}
            if some.random() < 0.5:
                left = [max(left, key=lambda token_id: len(ends[token_id]))]
            token_id = some.choice(left)
            said, end = said + tokens[token_id], ends[token_id]
    assert completed > 100, "hardly a word was begun"


def completes(said, token, words, *, ignore_case):
    """Say by definition whether a token completes a word that may begin before it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    before = decoder.decode(said)
    text = before + decoder.decode(token, final=True)
    if ignore_case:
        before, text = before.casefold(), text.casefold()
        words = [word.casefold() for word in words]
    return any(
        text.endswith(word, 0, stop)
        for word in words
        for stop in range(len(before) + 1, len(text) + 1)
    )


@on_vocabularies
def test_exactly_the_tokens_that_complete_a_text_are_banned_after_a_prompt(seed, ignore_case):
    some, begun = random.Random(seed), 0
    for _ in range(400):
        tokens, words = some_vocabulary(some)
        # Words that begin with another word, as normalizing makes them.
        words += tuple(word + some.choice(words) for word in words[:2])
        if all(completes(b"", token, words, ignore_case=ignore_case) for token in tokens if token):
            continue
        banned = BannedTexts(Vocabulary(tokens), words, ignore_case=ignore_case)
        word = some.choice(words)
        prompt = [place for place, token in enumerate(tokens) if token]
        prompt = some.choices(prompt, k=some.randint(0, 4))
        singles = {token: place for place, token in enumerate(tokens) if len(token) == 1}
        prompt += [singles[bytes([byte])] for byte in word.encode()[: some.randint(0, len(word))]]
        said, end = b"".join(tokens[token_id] for token_id in prompt), banned.begin(prompt)
        for _ in range(4):
            completing = {
                token_id
                for token_id, token in enumerate(tokens)
                if completes(said, token, words, ignore_case=ignore_case)
            }
            assert banned_after(banned, end, tokens) == completing
            begun += len(completing) > len(banned.always)
            left = [token_id for token_id in range(len(tokens)) if token_id not in completing]
            if not left:
                break
            token_id = some.choice(left)
            said, end = said + tokens[token_id], banned.step(end, token_id)
    assert begun > 100, "hardly a word was begun"


def test_folding_shortens_no_character_more_than_is_known():
    characters = map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1)))
    shrinks = max(len(c.encode()) / len(folded(c.encode())) for c in characters)

    assert shrinks == SHRINKS


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1), st.text("ab", max_size=12))
def test_a_text_without_a_word_can_be_written_in_every_way(words, text):
    tokens = [b"a", b"b", b"ab", b"ba", b"aab"]
    if any(word in text for word in words) or {"a", "b"} <= {*words}:
        return
    banned = BannedTexts(Vocabulary(tokens), tuple(words), ignore_case=False)
    ways = [(b"", b"")]
    for said, end in ways:
        out = banned_after(banned, end, tokens)
        for token_id, token in enumerate(tokens):
            if text.encode().startswith(said + token):
                assert token_id not in out
                ways.append((said + token, banned.step(end, token_id)))


def test_a_special_token_is_no_way_around_a_word():
    banned = BannedTexts(Vocabulary([b"f", b"o", b""]), ("foo",), ignore_case=False)

    end = b""
    for token_id in (0, 2, 1, 2):
        end = banned.step(end, token_id)
    assert [*banned.completing(end)] == [1]


def test_a_token_that_the_tokenizer_lacks_says_nothing():
    banned = BannedTexts(Vocabulary([b"f", b"o"]), ("fo",), ignore_case=False)

    assert banned.step(b"f", 999) == b"f"


@pytest.mark.parametrize(
    ("word", "said"),
    [("straße", "STRASSE"), ("strasse", "STRAẞE"), ("ΟΔΟΣ", "οδος"), ("οδοσ", "οδος"), ("İ", "i̇")],
)
def test_case_is_what_unicode_folds(word, said):
    letters = [*dict.fromkeys(said)]
    banned = BannedTexts(Vocabulary([c.encode() for c in letters]), (word,), ignore_case=True)
    end = b""
    for letter in said[:-1]:
        end = banned.step(end, letters.index(letter))

    assert letters.index(said[-1]) in {*banned.always, *banned.completing(end)}


def test_what_is_kept_of_places_is_bounded(monkeypatch):
    monkeypatch.setattr("sglang_lp.caches._MAX_KEPT", 100)
    tokens = [bytes([byte]) * length for byte in b"abc" for length in (1, 2, 3)]
    banned = BannedTexts(Vocabulary(tokens), ("aabb", "bbcc"), ignore_case=False)

    for end in (b"a", b"aa", b"aab", b"b", b"bb", b"bbc") * 3:
        fresh = BannedTexts(Vocabulary(tokens), ("aabb", "bbcc"), ignore_case=False)
        assert [*banned.completing(end)] == [*fresh.completing(end)]
        assert len(banned._kept._found) <= 3
