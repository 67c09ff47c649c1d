"""Where a rule steps back or forces, the others of its chain hold, or the answer ends refused.

Chains of rules that write, wait and end are played by random models, and each rule's promise is
read from the text by a naive check: forced texts in progress, begun words, choices, phrases, tool
starts, loops and thinking blocks, together with bans, least lengths and limits.
"""

import random
import re
from codecs import getincrementaldecoder
from types import SimpleNamespace

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.host import Host
from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.errors import Contradiction, ProcessorFault
from sglang_lp.links import prepare
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.testing import Batch, FakeRequest, decided_as_on_a_gpu
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import one_token_a_byte

THINK, CLOSE, CALL, CALLED = "<think>", "</think>", "<tool_call>", "</tool_call>"
TOKENIZER = one_token_a_byte(
    THINK, CLOSE, CALL, CALLED, "ab", "bc", "abc", "ca ", " a", "b b", "<tool", "b<", special=False
)
TOKENS = vocabulary_of(TOKENIZER).tokens
EOS = len(TOKENS)
VOCAB = EOS + 1
BYTES = [TOKENS.index(bytes([byte])) for byte in "abc \n<é".encode()]
LIKED = [*range(256, EOS), EOS, EOS, *BYTES * 2]
SERVED = ServedModel(
    TOKENIZER, VOCAB, (EOS,), reasoning=ReasoningFormat(THINK, CLOSE, tool_starts=(CALL,))
)
NEW_LINE = TOKENS.index(b"\n")


class Answer(SimpleNamespace):
    """An answer: its tokens without the end, its bytes, and whether it ended by itself."""


def no_word(params, answer):
    assert not any(word.encode() in answer.text for word in params["words"])


def no_whole_word(params, answer):
    reader = getincrementaldecoder("utf-8")(errors="replace")
    text = reader.decode(answer.text, final=answer.ended)
    text += "" if answer.ended else "x"  # a cut answer may end with the word
    for word in params["words"]:
        assert not re.search(rf"(?<!\w){word}(?!\w)", text)


def no_token(params, answer):
    assert not {*params["token_ids"]} & {*answer.tokens}


def long_enough(params, answer):
    assert not answer.ended or len(answer.tokens) >= params["min_tokens"]


def begins(params, answer):
    written = [TOKENS[token_id] for token_id in params["token_ids"]]
    assert [TOKENS[one] for one in answer.tokens][: len(written)] == written[: len(answer.tokens)]
    assert not answer.ended or len(answer.tokens) >= len(written)


def is_a_choice(params, answer):
    choices = [one.encode() for one in params["choices"]]
    assert any(one.startswith(answer.text) for one in choices)
    assert not answer.ended or answer.text in choices


def has_words(params, answer):
    until = answer.tokens[: params["within_tokens"]]
    text = b"".join(TOKENS[token_id] for token_id in until)
    if answer.ended or len(answer.tokens) >= params["within_tokens"]:
        assert all(word.encode() in text for word in params["words"])


def has_phrase(params, answer):
    """After the first token that completes the trigger the phrase follows."""
    written = b""
    for place, token_id in enumerate(answer.tokens):
        written += TOKENS[token_id]
        if params["trigger"].encode() in written:
            rest = b"".join(TOKENS[one] for one in answer.tokens[place + 1 :])
            phrase = params["phrase"].encode()
            assert rest.startswith(phrase) or (phrase.startswith(rest) and not answer.ended)
            return


def few_calls(params, answer):
    starts = re.findall(rb"(?:<tool_call>\s*)+", answer.text)
    assert len(starts) <= params["max_tool_calls"]


def no_loop(params, answer):
    """No pattern begins another repetition once it came as often as a loop."""
    for size in range(1, params["max_pattern_size"] + 1):
        length = size * params["min_count"]
        for at in range(len(answer.tokens) - length):
            repeated = answer.tokens[at : at + length]
            if repeated == repeated[:size] * params["min_count"]:
                assert answer.tokens[at + length] != repeated[0]


def no_ngram_twice(params, answer):
    size = params["ngram_size"]
    came = [tuple(answer.tokens[at:][:size]) for at in range(len(answer.tokens) - size + 1)]
    assert len({*came}) == len(came)


def thinks_and_answers(params, answer):
    """Blocks have their budget and a closing; an answer that ends has content behind the last."""
    written, inside, content = "", 0, ""
    for token_id in answer.tokens:
        was_open = is_open(written)
        written += TOKENS[token_id].decode(errors="replace")
        is_inside = is_open(written)
        inside = inside + 1 if was_open and is_inside else 0
        assert inside <= params["thinking_budget"] + 1
        content = "" if was_open or is_inside else content + TOKENS[token_id].decode("latin-1")
    if answer.ended:
        assert not is_open(written)
        assert re.sub(f"{THINK}|{CLOSE}|{CALL}|\\s", "", content)


def is_open(text):
    """Tell whether a text ends in a block: a start opens one, an end or a call closes it."""
    latest = [*re.finditer(f"{THINK}|{CLOSE}|{CALL}", text)]
    return bool(latest) and latest[-1][0] == THINK


def rule(name, check, **params):
    drawn = st.fixed_dictionaries(params)
    return drawn.map(lambda own: (name, own, check))


WORDS = st.lists(st.sampled_from(["ab", "bc", "c", "b b", "aa", "é"]), min_size=1, max_size=2)
RULES = [
    rule("BadWordsLogitProcessor", no_word, words=WORDS),
    rule(
        "BadWordsLogitProcessor",
        no_whole_word,
        words=st.sampled_from([["ab"], ["b", "abc"]]),
        whole_words=st.just(True),
    ),
    rule(
        "DisallowedTokensLogitsProcessor",
        no_token,
        token_ids=st.lists(st.sampled_from([*BYTES, *range(256, EOS)]), min_size=1, max_size=3),
    ),
    rule("MinLengthLogitProcessor", long_enough, min_tokens=st.integers(1, 9)),
    rule(
        "ForcedSequenceLogitProcessor",
        begins,
        token_ids=st.lists(st.sampled_from([*BYTES, *range(256, EOS)]), max_size=5),
    ),
    rule(
        "ChoiceLogitProcessor", is_a_choice, choices=st.sampled_from([["ab", "abc"], ["é", "ba"]])
    ),
    rule(
        "ForcedWordsLogitProcessor",
        has_words,
        words=st.sampled_from([["abc"], ["bc", "ca "], ["é"]]),
        within_tokens=st.integers(6, 15),
    ),
    rule(
        "TriggerPhraseLogitProcessor",
        has_phrase,
        trigger=st.sampled_from(["b", "ca", "<"]),
        phrase=st.sampled_from(["ac", "\n", "bab"]),
    ),
    rule(
        "ToolCallLimitLogitProcessor",
        few_calls,
        max_tool_calls=st.just(1),
        tool_call_starts=st.just([CALL]),
        tool_call_end=st.just(CALLED),
    ),
    rule("LoopBreakerLogitProcessor", no_loop, max_pattern_size=st.just(3), min_count=st.just(2)),
    rule(
        "DeepseekOCRNoRepeatNGramLogitProcessor",
        no_ngram_twice,
        ngram_size=st.integers(2, 3),
        window_size=st.just(99),
    ),
    rule(
        "ThinkingBudgetLogitProcessor",
        thinks_and_answers,
        thinking_budget=st.integers(0, 5),
        min_answer_tokens=st.just(1),
        new_line_token_id=st.just(NEW_LINE),
    ),
]


def random_model(seed):
    """Return a model whose next token is a random function of the last three and the place."""

    def likes(output):
        some = random.Random(hash((seed, *output[-3:], len(output) % 7)))
        row = torch.zeros(VOCAB)
        liked = some.sample(LIKED, 8)
        row[liked] = torch.arange(8, 0, -1).float()
        return row

    return likes


def played(links, model, steps, gpu):
    """Return the answer of a chain, and whether its rules left a token at every step."""
    params = {"chain": [name for name, _, _ in links]}
    for place, (_, own, _) in enumerate(links):
        params |= {f"{place}.{key}": value for key, value in own.items()}
    servings = prepare(ChainLogitProcessor(), params, SERVED, steps)
    request = FakeRequest([BYTES[0]], tokenizer=TOKENIZER)
    row = attach_row(given := request.custom_params({}), servings, Host(request))
    batch, output = Batch(), []
    while len(output) < steps and EOS not in output:
        logits = model(output)[None].clone()
        try:
            if gpu:
                with decided_as_on_a_gpu():
                    batch.step(logits, [row], [given])
            else:
                batch.step(logits, [row], [given])
        except (Contradiction, ProcessorFault) as error:
            if "no token is left" not in str(error):
                raise
            break
        output.append(int(logits[0].argmax()))
        request.append(output[-1])
    tokens = [one for one in output if one != EOS]
    text = b"".join(TOKENS[token_id] for token_id in tokens)
    return Answer(tokens=tokens, text=text, ended=EOS in output)


@given(
    links=st.lists(st.sampled_from(RULES), min_size=2, max_size=4).flatmap(
        lambda drawn: st.tuples(*drawn)
    ),
    seed=st.integers(0, 1 << 30),
    steps=st.integers(1, 20),
    gpu=st.booleans(),
)
def test_each_rule_of_a_chain_holds_beside_the_others_or_the_answer_ends(links, seed, steps, gpu):
    names = [name for name, _, _ in links]
    assume(len({*names}) == len(names))

    answer = played(links, random_model(seed), steps, gpu)

    for _, own, check in links:
        check(own, answer)
