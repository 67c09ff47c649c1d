"""An end after a number of tool calls."""

import random

import pytest
import torch

from sglang_lp.builtins import ChainLogitProcessor, ToolCallLimitLogitProcessor
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import Link, fit
from sglang_lp.served_model import ServedModel, ToolCallFormat
from sglang_lp.testing import FakeRequest, ProcessorContract
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import END, byte_level, one_token_a_byte

CORPUS = ["<call>{a}</call> so <calls> [call]x[/call] </calls>"] * 30
TOKENIZER = byte_level(CORPUS, 330)
TOKENIZER.add_tokens(["<call>", "so [call]", "ll>{"])
TOKENS = vocabulary_of(TOKENIZER).tokens
EOS = TOKENIZER.token_to_id(END)
VOCAB_SIZE = len(TOKENS)
PLAIN = {"tool_call_starts": ["<call>"], "tool_call_end": "</call>"}
BLOCK = {
    "tool_call_starts": ["<calls>", "[call]"],
    "tool_call_end": "[/call]",
    "tool_block_end": "</calls>",
}


class TestContract(ProcessorContract):
    processor = ToolCallLimitLogitProcessor
    valid_params = (
        {"max_tool_calls": 1, **PLAIN},
        {"max_tool_calls": 3, **BLOCK, "eos_token_ids": [3, 4]},
    )
    invalid_params = (
        (PLAIN, "max_tool_calls"),
        ({"max_tool_calls": 0, **PLAIN}, "max_tool_calls"),
        ({"max_tool_calls": 1, "tool_call_starts": ["<call>"]}, "tool_call_end"),
        ({"max_tool_calls": 1, "tool_call_end": "</call>"}, "tool_call_starts"),
        ({"max_tool_calls": 1, "tool_block_end": "</calls>"}, "tool_block_end"),
        ({"max_tool_calls": 1, **PLAIN, "tool_call_starts": []}, "tool_call_starts"),
        ({"max_tool_calls": 1, **PLAIN, "tool_call_starts": ["<c>"]}, "tool_call_starts"),
        ({"max_tool_calls": 1, **PLAIN, "tool_call_starts": ["<call>"] * 17}, "tool_call_starts"),
        ({"max_tool_calls": 1, **PLAIN, "tool_call_starts": ["\ud800"]}, "tool_call_starts"),
    )
    tokenizer = TOKENIZER
    token_ids = TOKENIZER.encode("<call>{a}</call>").ids
    eos_token_ids = (EOS,)


def edited(output, **params):
    """Return a row of zeros after the edits that follow an output."""
    request = FakeRequest([], output, tokenizer=TOKENIZER, eos_token_ids=[EOS])
    logits = torch.zeros(1, VOCAB_SIZE)
    return ToolCallLimitLogitProcessor()(logits, [request.custom_params(params)])[0]


def expected(output, most, starts, end, block_end):
    """Say by definition, in the text, which tokens are banned and whether the end is pushed."""
    whole = b"".join(TOKENS[token_id] for token_id in output)
    texts = [text.encode() for text in starts]
    ends = [text.encode() for text in (end, block_end) if text]
    calls, is_over, begins, after = 0, False, False, 0
    for place in range(len(whole)):
        for text in [*texts, *ends]:
            if place < after or not whole.startswith(text, place):
                continue
            if text in texts:
                calls += not (begins and not whole[after:place].strip())
                begins, is_over = True, False
            else:
                begins = False
                is_over = is_over or (calls > 0 and text == ends[-1])
            after = place + len(text)
    if calls < most:
        return set(), False
    holding = {i for i, token in enumerate(TOKENS) if any(text in token for text in texts)}
    left = whole[after:]
    begun = {left[-n:] for n in range(1, len(left) + 1)} & {
        text[:n] for text in texts for n in range(1, len(text))
    }
    rest = left[: len(left) - max(map(len, begun), default=0)]
    if begins and not rest.strip():  # the block of the call has begun
        if begun:
            return holding, False
        return {i for i in holding if not TOKENS[i].lstrip().startswith((*texts,))}, False
    return holding | {
        token_id
        for token_id, token in enumerate(TOKENS)
        for text in texts
        for one in begun
        if text.startswith(one) and token.startswith(text[len(one) :])
    }, is_over


def spelled(some, text):
    """Spell a text in tokens drawn at random."""
    left, found = text.encode(), []
    while left:
        fits = [i for i, token in enumerate(TOKENS) if token and left.startswith(token)]
        found.append(some.choice(fits))
        left = left[len(TOKENS[found[-1]]) :]
    return found


@pytest.mark.parametrize(
    ("params", "pieces"),
    [
        (PLAIN, ["<call>{a}</call>", " so ", "</call>", "<cal", "<call>", "</ca", "\n"]),
        (
            BLOCK,
            [
                "<calls>[call]x[/call]",
                "<calls>\n",
                "[call]x[/call]",
                "</calls>",
                " so ",
                "[ca",
                "[/call]",
            ],
        ),
    ],
    ids=["plain", "block"],
)
def test_the_end_is_pushed_after_the_last_call_and_no_other_call_starts(params, pieces):
    some = random.Random(5)
    pushed = bans = 0
    for _ in range(300):
        text = "".join(some.choices(pieces, k=some.randint(0, 6)))
        text += some.choice(["", "<cal", "<call", "[call"])
        output, most = spelled(some, text), some.randint(1, 2)
        row = edited(output, max_tool_calls=most, **params)
        banned, is_pushed = expected(
            output,
            most,
            params["tool_call_starts"],
            params["tool_call_end"],
            params.get("tool_block_end"),
        )
        assert {*row.isneginf().nonzero()[:, 0].tolist()} == banned, text
        assert row[EOS].item() == (MAX_BIAS if is_pushed else 0), text
        pushed, bans = pushed + is_pushed, bans + bool(banned)
    assert pushed > 9
    assert bans > 20


def test_an_answer_is_allowed_if_none_of_its_tokens_is_banned():
    params = ToolCallLimitLogitProcessor.parse_params({"max_tool_calls": 1, **PLAIN}, None)
    some, found = random.Random(6), set()
    for _ in range(100):
        text = "".join(some.choices(["<call>{a}</call>", " so ", "<cal", "l>"], k=3))
        answer = spelled(some, text)
        banned = any(
            edited(answer[:at], max_tool_calls=1, **PLAIN)[token] == -torch.inf
            for at, token in enumerate(answer)
        )
        found.add(banned)
        assert ToolCallLimitLogitProcessor.allows(params, TOKENIZER, answer) is not banned
    assert found == {False, True}


def test_an_end_that_begins_a_start_hides_no_start():
    params = {"max_tool_calls": 1, "tool_call_starts": ["<call>"], "tool_call_end": "<"}

    def row(text):
        return edited([TOKENS.index(bytes([byte])) for byte in text.encode()], **params)

    assert row("<call>x<call")[TOKENS.index(b">")].isneginf()
    assert row("<call>x<cal")[EOS] == 0  # the call may go on
    assert row("<call>x<y")[EOS] == MAX_BIAS


def test_a_start_that_is_begun_within_the_call_leaves_no_room_for_another():
    begun = [TOKENS.index(bytes([byte])) for byte in b"<call><cal"]

    row = edited(begun, max_tool_calls=1, **PLAIN)

    assert all(row[i].isneginf() for i, token in enumerate(TOKENS) if b"<call>" in token)
    assert not row[TOKENS.index(b"l")].isneginf()


@pytest.mark.parametrize("lines", [False, True])
def test_another_line_of_json_opens_a_call_only_where_the_format_says_so(lines):
    tokenizer = one_token_a_byte("}\n{", "\n{", " {", special=False)
    tokens = vocabulary_of(tokenizer).tokens
    params = {**PLAIN, "max_tool_calls": 1, "json_lines": lines, "eos_token_ids": [400]}

    def banned(text):
        output = [tokens.index(bytes([byte])) for byte in text.encode()]
        request = FakeRequest([], output, tokenizer=tokenizer)
        row = ToolCallLimitLogitProcessor()(torch.zeros(1, 401), [request.custom_params(params)])
        ids = row[0].isneginf().nonzero()[:, 0].tolist()
        return {tokens[token_id].decode() for token_id in ids} if lines else {*ids}

    always = {"}\n{"} if lines else set()
    assert banned('<call>{"a": {}') == always | ({"\n{"} if lines else set())
    for gap in ("\n", " \n", "\n" * 40, "\n  "):
        found = banned('<call>{"a": {}' + gap)
        assert found == always | ({"{", "\n{", " {"} if lines else set())
    assert banned('<call>{"a": {} ') == always | ({"\n{"} if lines else set())
    assert banned('<call>{"a": {},\n') == always
    assert banned('{"a": {}\n') == set()


def test_texts_that_are_left_out_are_those_of_the_served_parser():
    served = ServedModel.of(TOKENIZER, VOCAB_SIZE, [EOS])
    form = ToolCallFormat(("<calls>", "[call]"), "[/call]", "</calls>")
    params = ToolCallLimitLogitProcessor.parse_params({"max_tool_calls": 2})
    link = Link(ToolCallLimitLogitProcessor, params)

    fitted = fit(link, served._replace(tool_calls=form)).params
    assert (fitted.tool_call_starts, fitted.tool_call_end) == (form.starts, form.end)
    assert (fitted.tool_block_end, fitted.eos_token_ids) == (form.block_end, (EOS,))
    for unknown in (None, ToolCallFormat(("<calls>",))):
        with pytest.raises(InvalidParameter, match=r"tool_call_starts .*: required"):
            fit(link, served._replace(tool_calls=unknown))


@pytest.mark.parametrize("name", BLOCK)
def test_half_a_character_is_refused_in_each_text(name):
    given = {**BLOCK, name: ["\ud800abc"] if name == "tool_call_starts" else "\ud800"}
    with pytest.raises(InvalidParameter, match=f"{name} .*half a character"):
        ToolCallLimitLogitProcessor.parse_params(given | {"max_tool_calls": 1})


def test_where_the_end_is_banned_the_answer_goes_on_without_another_call():
    output = TOKENIZER.encode("<call>{a}</call>").ids
    request = FakeRequest([], output, tokenizer=TOKENIZER, eos_token_ids=[EOS])
    params = {
        "chain": ["ToolCallLimitLogitProcessor", "MinLengthLogitProcessor"],
        "1.min_tokens": 999,
        **{f"0.{name}": value for name, value in {"max_tool_calls": 1, **PLAIN}.items()},
    }
    logits = torch.zeros(1, VOCAB_SIZE)
    row = ChainLogitProcessor()(logits, [request.custom_params(params)])[0]

    assert row[EOS].isneginf()
    assert row.isfinite().sum() > VOCAB_SIZE // 2
