"""Banned scripts never appear in the output; every character of it is checked."""

import random
from functools import cache

import pytest
import regex
import tokenizers
import torch

from sglang_lp.builtins import ScriptLogitProcessor
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.request import Request
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract
from sglang_lp.text.scripts import BannedScripts
from sglang_lp.text.vocabulary import Vocabulary, vocabulary_of
from support.models.vocabularies import END, byte_level, tokens_of

CORPUS = ["the cat sat, 12 mats", "привет, мир", "日本語の文章と漢字", "서울 안녕 ελ 😀🎉"] * 9
TOKENIZER = byte_level(CORPUS, 420)
TOKENIZER.add_tokens(["<think>", "</think>", "слово"])
START, CLOSE = map(TOKENIZER.token_to_id, ("<think>", "</think>"))
VOCAB_SIZE = 430


class TestContract(ProcessorContract):
    processor = ScriptLogitProcessor
    valid_params = (
        {"scripts": ["Han", "latin"], "mode": "ban"},
        {"scripts": ["Latin"], "mode": "allow"},
        {"scripts": ["Cyrl"], "mode": "ban", "where": "thinking"},
        {
            "scripts": ["Hiragana"],
            "mode": "ban",
            "where": "answer",
            "thinking_start": "<think>",
            "thinking_end": "</think>",
        },
    )
    invalid_params = (
        ({"scripts": ["Han"]}, "mode"),
        ({"mode": "ban"}, "scripts"),
        ({"scripts": [], "mode": "ban"}, "scripts"),
        ({"scripts": "Han", "mode": "ban"}, "scripts"),
        ({"scripts": ["Han}|."], "mode": "ban"}, "scripts"),
        ({"scripts": ["Han"], "mode": "forbid"}, "mode"),
        ({"scripts": ["Han"], "mode": "ban", "where": "prompt"}, "where"),
        ({"scripts": ["Han"], "mode": "ban", "thinking_start": "<a>"}, "thinking_end"),
        (
            {"scripts": ["Han"], "mode": "ban", "thinking_start": "a", "thinking_end": "b"},
            "thinking_start",
        ),
    )
    tokenizer = TOKENIZER
    token_ids = (START, CLOSE, *TOKENIZER.encode(CORPUS[2]).ids[:6], 0xE3, 0xE4, 0x80)


# What may not come, by definition

#: No script has letters beyond.
ALL = "".join(chr(number) for number in range(0x40000) if not 0xD800 <= number < 0xE000)
BEGINNINGS = {}
for character in ALL:
    for end in range(1, len(character.encode())):
        BEGINNINGS.setdefault(character.encode()[:end], []).append(character)


@cache
def of(*scripts):
    return {*regex.findall("[" + "".join(rf"\p{{Script={name}}}" for name in scripts) + "]", ALL)}


@cache
def banned_by(scripts, mode):
    if mode == "ban":
        return of(*scripts)
    return {*ALL} - of(*scripts) - of("Common", "Inherited") - of("Unknown")


@cache
def no_way(scripts, mode):
    return banned_by(scripts, mode) | of("Unknown")


@cache
def is_lost(beginning, scripts, mode):
    becoming = BEGINNINGS.get(beginning, ())
    return not banned_by(scripts, mode).isdisjoint(becoming) and no_way(scripts, mode).issuperset(
        becoming
    )


def is_refused(text, scripts, mode):
    """Say by definition whether a text may not be said."""
    if not banned_by(scripts, mode).isdisjoint(text.decode(errors="ignore")):
        return True
    return any(is_lost(text[-length:], scripts, mode) for length in (1, 2, 3))


SCRIPTS = ("Han",), ("Latin", "Greek"), ("Hangul", "Han", "Hiragana"), ("Katakana", "Cyrillic")
LETTERS = "aé1 ,яλ中語のカー한😀\u0301\u4dc0𐌰"


def some_vocabulary(some):
    """Return tokens that spell every text of a few letters, cut wherever it happens to be."""
    letters = some.sample(LETTERS, some.randint(2, 8))
    return tokens_of(some, letters, some.randint(0, 25), 4)


@pytest.mark.parametrize("mode", ["ban", "allow"])
@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_tokens_that_write_a_banned_letter_are_banned(seed, mode):
    some, completed = random.Random(seed), 0
    for _ in range(25):
        tokens = some_vocabulary(some)
        scripts = some.choice(SCRIPTS)
        if all(is_refused(token, scripts, mode) for token in tokens if token):
            with pytest.raises(RequestError, match="something to write"):
                BannedScripts(Vocabulary(tokens), frozenset(), scripts, mode)
            continue
        banned = BannedScripts(Vocabulary(tokens), frozenset(), scripts, mode)
        said = pending = b""
        for _ in range(8):
            out = {*banned.always, *(banned.completing(pending) if pending else ())}
            assert out == {
                token_id
                for token_id, token in enumerate(tokens)
                if token and is_refused(said + token, scripts, mode)
            }, (said, scripts)
            completed += len(out) > len(banned.always)
            left = [token_id for token_id in range(len(tokens)) if token_id not in out]
            begun = [i for i in left if banned.pending(pending, [i])]
            token_id = some.choice(begun if begun and some.random() < 0.6 else left)
            said += tokens[token_id]
            pending = banned.pending(pending, [token_id])
    assert completed > 5, "hardly a letter was begun"


# Where it holds, and what stays free


def banned_now(params, prompt_ids=(), output_ids=(), tokenizer=TOKENIZER):
    request = FakeRequest(prompt_ids, output_ids, tokenizer=tokenizer)
    row = ScriptLogitProcessor()(torch.zeros(1, VOCAB_SIZE), [request.custom_params(params)])[0]
    return {token_id for token_id, logit in enumerate(row.tolist()) if logit == -torch.inf}


NO_HAN = {"scripts": ["Han"], "mode": "ban"}
HAN = TOKENIZER.token_to_id(TOKENIZER.encode("漢字").tokens[-1])


@pytest.mark.parametrize(
    ("where", "history", "expected"),
    [
        ("thinking", [], False),
        ("thinking", [START], True),
        ("thinking", [START, 40], True),
        ("thinking", [START, 40, CLOSE], False),
        ("answer", [], True),
        ("answer", [START, 40], False),
        ("answer", [START, CLOSE, 40], True),
        ("everywhere", [START], True),
        ("everywhere", [], True),
    ],
)
def test_it_holds_where_it_should_whether_the_prompt_opened_the_block_or_the_model(
    where, history, expected
):
    params = {**NO_HAN, "where": where}
    for cut in range(len(history) + 1):
        assert bool(banned_now(params, history[:cut], history[cut:])) == expected


def test_markup_and_special_tokens_stay_free():
    out = banned_now({"scripts": ["Han"], "mode": "allow"})

    assert {START, CLOSE, TOKENIZER.token_to_id(END)}.isdisjoint(out)
    assert TOKENIZER.token_to_id("слово") in out
    assert TOKENIZER.token_to_id("the") in out


def test_what_belongs_to_no_script_stays_free():
    tokens = [text.encode() for text in ("1", " ", ",", "😀", "\u0301", "ー", "\ue000", "a", "я")]

    for mode, scripts, out in (("allow", ("Latin",), {8}), ("ban", ("Cyrillic", "Latin"), {7, 8})):
        assert BannedScripts(Vocabulary(tokens), frozenset(), scripts, mode).always == out


def test_a_character_that_the_prompt_began_is_not_completed():
    vocabulary = vocabulary_of(TOKENIZER)
    # U+4DC0 has no script and U+4E00 is Han; the first token of both may be the byte E4.
    lead, middle = (vocabulary.tokens.index(bytes([byte])) for byte in (0xE4, 0xB8))

    assert middle in banned_now(NO_HAN, [lead])
    assert middle not in banned_now(NO_HAN, [])
    assert vocabulary.tokens.index(b"\xe5") in banned_now(NO_HAN, [])
    assert lead not in banned_now(NO_HAN, [])


def test_a_fork_leaves_the_request_where_it_was():
    processor = ScriptLogitProcessor()
    params = processor.parse_params(NO_HAN)
    request = Request(params, tokenizer=TOKENIZER)
    request.state = processor.start(request)
    fork = Request(params)
    fork.state = processor.fork(request)
    processor.advance(fork, [vocabulary_of(TOKENIZER).tokens.index(b"\xe4")])

    assert (request.state.pending, fork.state.pending) == (b"", b"\xe4")


# What is refused


def refusal(params, tokenizer=TOKENIZER):
    with pytest.raises(InvalidParameter) as caught:
        ScriptLogitProcessor.fit_params(
            ScriptLogitProcessor.parse_params(params), ServedModel(tokenizer, 430)
        )
    return str(caught.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("Cyrilic", "'Cyrilic', which is none; did you mean Cyrillic?"),
        ("Chinese", "'Chinese', which is none"),
        ("Common", "letters of their own, got 'Common'"),
        ("zyyy", "letters of their own"),
        ("Inherited", "letters of their own"),
        ("Zzzz", "letters of their own"),
        ("Hrkt", "letters of their own"),
    ],
)
def test_what_is_no_script_is_refused(script, message):
    assert message in refusal({"scripts": [script], "mode": "ban"})


def test_without_a_tokenizer_it_is_refused():
    assert "no tokenizer" in refusal(NO_HAN, None)


def test_a_model_without_delimiters_has_no_thinking():
    params = {**NO_HAN, "where": "thinking"}
    assert "thinking delimiters" in refusal(params, byte_level(CORPUS, 300))


def test_delimiters_that_could_not_be_written_are_refused():
    params = {"scripts": ["Latin"], "mode": "ban", "where": "answer"}
    named = {"thinking_start": "cat", "thinking_end": "mat"}

    assert "a token of 'cat' holds banned letters" in refusal({**params, **named})


def test_scripts_that_leave_nothing_to_write_are_refused():
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    letters.decoder = tokenizers.decoders.ByteLevel()

    assert "holds letters of these" in refusal({"scripts": ["Latin"], "mode": "ban"}, letters)
    assert "holds letters of others" in refusal({"scripts": ["Han"], "mode": "allow"}, letters)
