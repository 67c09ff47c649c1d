"""A thinking budget ends on whole characters, and never above the budget."""

import codecs
import random

import pytest

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.testing import ProcessorContract, run
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import byte_fallback, byte_level

CORPUS = ["日本語の文章と、絵文字😀😀🎉", "привет, мир", "süße Äpfel", "the cat"] * 9
TOKENIZER = byte_level(CORPUS, 300)
TOKENIZER.add_special_tokens(["<think>", "</think>"])
START, STOP = map(TOKENIZER.token_to_id, ["<think>", "</think>"])
TOKENS = vocabulary_of(TOKENIZER).tokens
VOCAB = len(TOKENS) + 3
IDS = {"thinking_start_token_id": START, "thinking_end_token_id": STOP}

#: A decoder that takes bytes back around a wrong one, and a line feed that is a byte.
FALLBACK = byte_fallback(["▁", "a", "x", "é"])
FALLBACK.add_special_tokens(["<think>", "</think>"])
OPENED, CLOSED = map(FALLBACK.token_to_id, ["<think>", "</think>"])
FALLBACK_IDS = {
    "thinking_start_token_id": OPENED,
    "thinking_end_token_id": CLOSED,
    "new_line_token_id": 1 + 0x0A,
}
#: What a model writes there: characters in either kind of token, parts of some, and none.
WRITTEN = [
    *([FALLBACK.token_to_id(piece)] for piece in "axé"),
    *([1 + byte for byte in text.encode()] for text in "ñ😀日a\n"),
    *([1 + byte for byte in text] for text in (b"\xff", b"\xc3", b"\xf0\x9f", b"\x80")),
]

#: By the first byte of a character, how many it has; the others begin none.
LENGTHS = {byte: 2 + (byte >= 0xE0) + (byte >= 0xF0) for byte in range(0xC2, 0xF5)}


class TestContract(ProcessorContract):
    processor = ThinkingBudgetLogitProcessor
    valid_params = (
        {"thinking_budget": 5, **IDS},
        {"thinking_budget": 9, **IDS, "soft_thinking_budget": 2, "soft_top_n": 20},
        {"thinking_budget": 3, **IDS, "min_thinking_tokens": 2, "eos_token_ids": [0]},
    )
    invalid_params = (({"thinking_budget": 5, "thinking_start": "<a>"}, "thinking_end"),)
    tokenizer = TOKENIZER
    vocab_size = VOCAB
    token_ids = (START, STOP, 0, TOKENIZER.token_to_id("ð"), TOKENIZER.token_to_id("Ł"))


class TestContractWithByteFallback(ProcessorContract):
    processor = ThinkingBudgetLogitProcessor
    valid_params = (
        {"thinking_budget": 5, **FALLBACK_IDS},
        {"thinking_budget": 9, **FALLBACK_IDS, "soft_thinking_budget": 2, "soft_top_n": 20},
    )
    tokenizer = FALLBACK
    vocab_size = CLOSED + 1
    token_ids = (OPENED, CLOSED, *(token_id for tokens in WRITTEN for token_id in tokens))


def missing(text):
    """Return how many bytes a text lacks to end with a whole character, by Python's decoder."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(text)
    pending = decoder.getstate()[0]
    return LENGTHS[pending[0]] - len(pending) if pending else 0


def spelled(token_ids):
    return b"".join(TOKENS[i] for i in token_ids if i < len(TOKENS))


@pytest.mark.parametrize("budget", range(8))
@pytest.mark.parametrize("seed", range(3))
def test_what_could_not_be_finished_in_time_is_banned_and_nothing_else(budget, seed):
    some = random.Random(100 * budget + seed)
    params = {"thinking_budget": budget, **IDS}
    partial = [i for i, token in enumerate(TOKENS) if missing(token)]
    continuing = [i for i, token in enumerate(TOKENS) if token and 0x80 <= token[0] < 0xC0]

    def wishes(_):
        logits = [some.random() for _ in range(VOCAB)]
        for token_id in some.choice([partial, continuing, []]):
            logits[token_id] += 1
        logits[START] = logits[STOP] = 0.0
        return logits

    played = run(
        ThinkingBudgetLogitProcessor,
        params,
        [START],
        wishes,
        steps=budget + 1,
        vocab_size=VOCAB,
        tokenizer=TOKENIZER,
    )
    inside = played.token_ids[:budget]

    assert played.token_ids[budget] == STOP
    assert missing(spelled(inside)) == 0
    for at, row in enumerate(played.logits[:budget]):
        left = budget - at - 1
        banned = {i for i, logit in enumerate(row.tolist()) if logit == float("-inf")}
        assert banned == {
            i
            for i, token in enumerate(TOKENS)
            if token and left < 3 and missing(spelled(inside[:at]) + token) > left
        }


@pytest.mark.parametrize("soft", [0, 1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_a_soft_budget_waits_for_the_end_of_a_character(soft, seed):
    some = random.Random(seed)
    text = "".join(some.choices("😀🎉日本語éa", k=30)).encode()

    def writing(tokens):
        said = len(spelled(tokens))
        fitting = [i for i, token in enumerate(TOKENS) if token and text.startswith(token, said)]
        logits = [0.0] * VOCAB
        logits[some.choice(fitting)] = 2.0
        logits[STOP] = 1.0  # among the likeliest at every step
        return logits

    played = run(
        ThinkingBudgetLogitProcessor,
        {"thinking_budget": 40, "soft_thinking_budget": soft, **IDS},
        [START],
        writing,
        steps=10,
        vocab_size=VOCAB,
        tokenizer=TOKENIZER,
    )
    ended = played.token_ids.index(STOP)
    ends = [at for at in range(ended + 1) if not missing(spelled(played.token_ids[:at]))]

    assert ended == next(at for at in ends if at >= soft)


def test_a_closing_message_whose_tokens_cut_its_characters_is_written_whole():
    params = {"thinking_budget": 6, "soft_thinking_budget": 4, **IDS, "closing": "\n🎉🎉"}
    newline = TOKENIZER.encode("\n").ids

    played = run(
        ThinkingBudgetLogitProcessor,
        params,
        [START],
        [*TOKENIZER.encode("abc").ids, *newline],
        steps=20,
        vocab_size=VOCAB,
        tokenizer=TOKENIZER,
    )

    assert spelled(played.token_ids[: played.token_ids.index(STOP)]) == "abc\n🎉🎉".encode()


def thought(seed, goals=WRITTEN, **params):
    """Return the tokens of a block under a decoder that takes bytes back, without the end."""
    some, wanted = random.Random(seed), []

    def wishes(_):
        if not wanted:
            wanted.extend(some.choice(goals))
        logits = [some.random() for _ in range(CLOSED + 1)]
        for token_id in (1 + byte for byte in b"\xff\xc3\xb1\xf0"):  # if it may not have that
            logits[token_id] += 1
        logits[wanted.pop(0)] = 3.0
        logits[0] = logits[OPENED] = logits[CLOSED] = 0.0
        return logits

    played = run(
        ThinkingBudgetLogitProcessor,
        {**FALLBACK_IDS, **params},
        [OPENED],
        wishes,
        steps=60,
        vocab_size=CLOSED + 1,
        tokenizer=FALLBACK,
    )
    return played.token_ids[: played.token_ids.index(CLOSED)]


@pytest.mark.parametrize("budget", range(1, 9))
@pytest.mark.parametrize("closing", [None, "\n\n", "\n😀", "ñx"])
def test_no_wrong_byte_takes_the_closing_back(budget, closing):
    params = {"thinking_budget": budget, "min_thinking_tokens": budget}
    if closing is not None:
        params["closing"] = closing
    forced = FALLBACK.encode(closing or "\n").ids
    for seed in range(30):
        token_ids = thought(seed, **params)
        before = token_ids[: -len(forced)]

        assert token_ids == [*before, *forced]
        assert FALLBACK.decode(token_ids) == FALLBACK.decode(before) + (closing or "\n")
        assert len(before) <= budget


def test_a_soft_budget_waits_for_the_end_of_a_run_with_a_wrong_byte():
    goals = [tokens for tokens in WRITTEN if tokens != [1 + 0x0A]]
    params = {"thinking_budget": 30, "soft_thinking_budget": 3, "soft_top_n": CLOSED + 1}
    for seed in range(100):
        token_ids = thought(seed, goals, **params)
        said = [FALLBACK.decode(token_ids[:at]) for at in range(len(token_ids))]
        whole = [
            at
            for at, text in enumerate(said)
            if FALLBACK.decode([*token_ids[:at], 11]) == text + "\n"
        ]

        assert token_ids[-1] == 1 + 0x0A
        assert len(token_ids) - 1 == min([*(at for at in whole if at >= 3), 30])


def test_what_no_budget_foresees_takes_the_line_feed_back_and_closes_all_the_same():
    broken = [1 + 0xFF, 1 + 0xC3]

    played = run(
        ThinkingBudgetLogitProcessor,
        {"thinking_budget": 0, **FALLBACK_IDS},
        [5],
        [*broken, OPENED],
        steps=5,
        vocab_size=CLOSED + 1,
        tokenizer=FALLBACK,
    )

    assert played.token_ids == [*broken, OPENED, 1 + 0x0A, CLOSED]
    assert FALLBACK.decode(played.token_ids) == "\ufffd" * 3


def test_without_a_tokenizer_a_budget_closes_where_it_ends():
    unfinished = next(i for i, token in enumerate(TOKENS) if missing(token))

    played = run(
        ThinkingBudgetLogitProcessor,
        {"thinking_budget": 2, **IDS},
        [START],
        [unfinished] * 3,
        steps=3,
        vocab_size=VOCAB,
    )

    assert played.token_ids == [unfinished, unfinished, STOP]


def test_a_block_within_its_budget_sleeps_until_three_tokens_before_it(monkeypatch):
    seen = []
    edit = ThinkingBudgetLogitProcessor.edit

    def noting(self, request, edits):
        seen.append(request.position)
        edit(self, request, edits)

    monkeypatch.setattr(ThinkingBudgetLogitProcessor, "edit", noting)
    letter = TOKENIZER.token_to_id("a")
    run(
        ThinkingBudgetLogitProcessor,
        {"thinking_budget": 50, **IDS},
        [START],
        [letter] * 60,
        steps=50,
        vocab_size=VOCAB,
        tokenizer=TOKENIZER,
    )

    assert seen == [0, 47, 48, 49]
