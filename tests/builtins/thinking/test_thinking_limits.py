"""Limits that end a block besides its budget: the total of all blocks, a loop, the answer's end."""

from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking import loops
from sglang_lp.edits import LENGTH, End
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import prepare
from sglang_lp.processor import Recording
from sglang_lp.request import Request
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.testing import run
from support.models.vocabularies import one_token_a_byte

VOCAB = 8
START, END, NEW_LINE = 1, 2, 3
IDS = {
    "thinking_start_token_id": START,
    "thinking_end_token_id": END,
    "new_line_token_id": NEW_LINE,
}


def generated(params, prompt, script):
    played = run(
        ThinkingBudgetLogitProcessor,
        {**IDS, **params},
        prompt,
        script,
        steps=len(script),
        vocab_size=VOCAB,
    )
    return played.token_ids


def report(params, prompt, output, forced):
    ((processor, fitted, *_),) = prepare(
        ThinkingBudgetLogitProcessor(), {**IDS, **params}, ServedModel(vocab_size=VOCAB)
    )
    return processor.report(fitted, prompt, output, forced)["thinking"]


# Strict thinking of SGLang, which masks all tokens but one to close a block


class Masked(Request):
    """A request with a few tokens that are not masked."""

    __slots__ = ("left",)

    def top(self, count):
        return self.left[:count]


@pytest.mark.parametrize("end", ["#", "#$#%"])
@given(data=st.data())
def test_only_the_next_token_of_the_end_is_left_to_strict_thinking(end, data):
    ids = [ord(char) - ord("!") for char in end]
    form = ReasoningFormat("<", end, strict=True)
    served = ServedModel(one_token_a_byte(), 400, reasoning=form)
    ((processor, params, *_),) = prepare(
        ThinkingBudgetLogitProcessor(), {"thinking_budget": 0}, served
    )
    tokens = st.sampled_from([*ids, 30, 31])
    request = Masked(params, tokenizer=served.tokenizer)
    request.prompt_ids = [ord("<") - ord("!"), *data.draw(st.lists(tokens, max_size=3))]
    request.output_ids = data.draw(st.lists(tokens, max_size=6))
    whole = [*request.prompt_ids, *request.output_ids]
    if end in "".join(chr(token_id + ord("!")) for token_id in whole):
        return  # the block has ended
    request.position = len(request.output_ids)
    request.state = processor.start(request)
    processor.advance(request, request.output_ids)
    request.left = [data.draw(tokens)]
    edits = Recording(400)
    processor.edit(request, edits)

    # Found by hand: the longest beginning of the end that the generated tokens end with.
    begun = 0
    for length in range(1, len(ids)):
        if request.output_ids[-length:] == ids[:length]:
            begun = length
    assert (edits.forced is None) == (request.left == [ids[begun]])


# All blocks together


def test_all_blocks_together_have_a_total():
    script = [5, 5, END, START, 5, 5, 5, 5, 5]

    output = generated({"total_thinking_tokens": 4}, [START], script)

    assert output == [5, 5, END, START, 5, 5, NEW_LINE, END, 5]
    assert report({"total_thinking_tokens": 4}, [START], output, [(6, 8)]) == [
        {"tokens": 2, "ended": "model"},
        {"tokens": 3, "ended": "budget"},
    ]


def test_a_block_that_opens_when_the_total_is_spent_is_closed_at_once():
    script = [5, 5, 5, 5, START, 5, 5, 5]

    output = generated({"total_thinking_tokens": 2}, [START], script)

    assert output == [5, 5, NEW_LINE, END, START, END, 5, 5]
    ends = {"thinking_end_token_id": None, "thinking_end_token_ids": [6, END]}
    output = generated({**ends, "total_thinking_tokens": 0}, [START], [5, 5, START, 5, 5, 5])
    assert output == [6, END, START, 6, END, 5]


def test_a_block_that_a_tool_call_interrupts_spends_one_budget_and_one_total():
    call = {"tool_start_token_ids": [4], "max_pattern_size": 2, "min_pattern_size": 1}
    script = [5, 6, 4, 5, START, 5, 6, 5]

    for limit in ({"thinking_budget": 3}, {"total_thinking_tokens": 3}):
        params = {**call, **limit}
        output = generated(params, [START], script)
        assert output == [5, 6, 4, 5, START, 5, NEW_LINE, END]
        assert report(params, [START], output, [(6, 8)]) == [
            {"tokens": 2, "ended": "tool_call"},
            {"tokens": 2, "ended": "budget"},
        ]
    stops = {**call, "thinking_budget": 4, "at_limit": "stop"}
    assert report(stops, [START], [5, 6, 4, 5, START, 5, 6], []) == [
        {"tokens": 2, "ended": "tool_call"},
        {"tokens": 2, "ended": "budget"},
    ]


def test_thoughts_in_the_prompt_count_for_the_budget_of_their_block_alone():
    assert generated({"total_thinking_tokens": 2}, [START, 5, 5, 5], [5] * 4) == [
        *(5, 5),
        *(NEW_LINE, END),
    ]


@given(
    script=st.lists(st.sampled_from([START, END, 4, 5, 6]), min_size=1, max_size=60),
    closing=st.sampled_from([(), (5,), (6, 4, 6)]),
    total=st.integers(0, 12),
    budget=st.integers(0, 8) | st.none(),
)
def test_no_answer_thinks_more_than_its_total(script, closing, total, budget):
    params = {
        "total_thinking_tokens": total,
        "thinking_budget": budget,
        "closing_token_ids": closing,
    }

    output = generated(params, [START], script)

    inside, thought = True, 0
    for token in output:
        if inside and token == END:
            inside = False
        elif inside:
            thought += 1
        elif token == START:
            inside = True
    # The closing comes on top in the block that spends the total, and in no later one.
    assert thought <= total + max(1, len(closing))


# Loops


def ends_with_loop(tokens, smallest, largest, count):
    return any(
        len(tokens) >= size * count
        and all(
            tokens[-size * (n + 1) : len(tokens) - size * n] == tokens[-size:] for n in range(count)
        )
        for size in range(smallest, largest + 1)
    )


@given(
    # Bytes of one token within those of two others; two letters make loops likely.
    opening=st.lists(st.sampled_from([0, 1, 256]), max_size=30),
    pattern=st.lists(st.sampled_from([1, 256]), max_size=20),
    times=st.integers(1, 6),
    sizes=st.tuples(st.integers(1, 12), st.integers(0, 12)),
    count=st.integers(2, 5),
)
def test_a_loop_is_found_as_its_definition_says(opening, pattern, times, sizes, count):
    tokens, smallest, largest = opening + pattern * times, sizes[0], sum(sizes)
    sizes = {"max_pattern_size": largest, "min_pattern_size": smallest, "min_count": count}
    params = SimpleNamespace(**sizes, min_new_share=None)

    found = loops.ends_with_loop(params, tokens)

    assert found == ends_with_loop(tokens, smallest, largest, count)


def check_closed(params, script, due):
    """Check that a block is closed after so many tokens; never, if ``due`` is ``None``."""
    output = generated(params, [START], script)
    if due is None:
        assert END not in output
    else:
        assert output[: due + 2] == [*script[:due], NEW_LINE, END][: len(output)]
        if len(output) > due + 1:
            (block, *_) = report(params, [START], output, [(due, due + 2)])
            assert block == {"tokens": due + 1, "ended": "loop"}


@settings(max_examples=60)
@given(
    opening=st.lists(st.integers(4, 7), max_size=300),
    pattern=st.lists(st.integers(4, 7), min_size=1, max_size=12),
    smallest=st.integers(1, 4),
    largest=st.integers(4, 12),
    count=st.integers(2, 5),
)
def test_a_block_that_loops_is_closed_and_no_other(opening, pattern, smallest, largest, count):
    params = {"max_pattern_size": largest, "min_pattern_size": smallest, "min_count": count}
    script = [*opening, *(pattern * 600)[:600]]

    looked = [at for at in range(512, 900, 512) if at <= len(script)]
    due = next((at for at in looked if ends_with_loop(script[:at], smallest, largest, count)), None)
    check_closed(params, script, due)


@settings(max_examples=30)
@given(
    opening=st.lists(st.integers(4, 7), max_size=600),
    pattern=st.lists(st.integers(4, 7), min_size=1, max_size=20),
    window=st.tuples(st.integers(1, 4), st.integers(4, 300)),
    share=st.sampled_from([0.05, 0.2, 0.6]),
)
def test_a_block_with_few_new_ngrams_is_closed_and_no_other(opening, pattern, window, share):
    size, length = window
    params = {"min_new_share": share, "ngram_size": size, "window_size": length}
    script = [*opening, *(pattern * 700)[:700]]

    def is_loop(tokens):
        ngrams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
        return len({*ngrams[size - 1 - length :]}) < share * (length - size + 1)

    looked = [at for at in (512, 1024) if at <= len(script)]
    due = next((at for at in looked if is_loop(script[:at])), None)
    check_closed(params, script, due)


def test_a_loop_is_closed_with_the_message():
    params = {"max_pattern_size": 2, "min_pattern_size": 1, "closing_token_ids": [6, 7]}

    assert generated(params, [START], [5] * 518)[510:516] == [5, 5, 6, 7, END, 5]


def test_tokens_that_come_at_once_are_looked_through_as_one_by_one():
    params = {**IDS, "max_pattern_size": 3, "min_pattern_size": 1}
    tokens = [4, 5, 6, 7] * 20 + [5] * 440
    ((processor, fitted, *_),) = prepare(
        ThinkingBudgetLogitProcessor(), params, ServedModel(vocab_size=VOCAB)
    )
    found = []
    for size in (1, 3, len(tokens)):
        request = Request(fitted)
        request.prompt_ids, request.output_ids = array("q", [START]), array("q")
        request.state = processor.start(request)
        for at in range(0, len(tokens), size):
            request.output_ids.extend(tokens[at : at + size])
            processor.advance(request, tokens[at : at + size])
        found.append(request.state.looped)

    assert found == [True] * 3


def test_patterns_that_cannot_be_are_refused():
    with pytest.raises(InvalidParameter, match="min_pattern_size"):
        ThinkingBudgetLogitProcessor.parse_params({**IDS, "max_pattern_size": 3})
    with pytest.raises(InvalidParameter, match="window_size"):
        ThinkingBudgetLogitProcessor.parse_params({**IDS, "ngram_size": 4, "window_size": 3})


# Truncation


def test_an_answer_without_room_to_think_ends_with_an_empty_block():
    params = {**IDS, "thinking_budget": 0, "at_limit": "stop"}
    ((processor, fitted, *_),) = prepare(
        ThinkingBudgetLogitProcessor(), params, ServedModel(vocab_size=VOCAB)
    )
    request = Request(fitted)
    request.prompt_ids = array("q", [START])
    request.state = processor.start(request)
    edits = Recording(VOCAB)
    processor.edit(request, edits)

    assert (edits.forced, edits.end) == (END, End("thinking budget", LENGTH))
    assert report(params, [START], [END], [(0, 1)]) == [{"tokens": 0, "ended": "budget"}]


@pytest.mark.parametrize("budget", [1, 2, 7])
def test_an_answer_can_end_with_its_budget(budget):
    params = {**IDS, "thinking_budget": budget, "at_limit": "stop"}
    ((processor, fitted, *_),) = prepare(
        ThinkingBudgetLogitProcessor(), params, ServedModel(vocab_size=VOCAB)
    )
    request = Request(fitted)
    request.prompt_ids, request.output_ids = array("q", [START]), array("q")
    request.state = processor.start(request)
    ends = []
    for position in range(budget):
        request.position = position
        edits = Recording(VOCAB)
        processor.edit(request, edits)
        ends.append(edits.end)
        request.output_ids.append(5)
        processor.advance(request, [5])

    assert ends == [None] * (budget - 1) + [End("thinking budget", LENGTH)]
    assert report(params, [START], [5] * budget, []) == [{"tokens": budget, "ended": "budget"}]


@given(
    prompt=st.lists(st.sampled_from([START, END, 5, 6]), max_size=4),
    script=st.lists(st.sampled_from([START, END, 5, 6, 7]), max_size=14),
    ends=st.sampled_from([(END,), (END, 6), (6, 6, END)]),
    budget=st.integers(0, 4),
    total=st.none() | st.integers(0, 6),
)
def test_an_answer_that_ends_with_its_budget_thinks_no_more_than_that(
    prompt, script, ends, budget, total
):
    params = {
        "thinking_start_token_id": START,
        "thinking_end_token_id": None,
        "thinking_end_token_ids": ends,
        "thinking_budget": budget,
        "total_thinking_tokens": total,
        "at_limit": "stop",
    }
    ((processor, fitted, *_),) = prepare(
        ThinkingBudgetLogitProcessor(), params, ServedModel(vocab_size=VOCAB)
    )
    request = Request(fitted)
    request.prompt_ids, request.output_ids = array("q", prompt), array("q")
    request.state = processor.start(request)
    over = request.state.inside
    for position, token_id in enumerate(script):
        request.position = position
        edits = Recording(VOCAB)
        processor.edit(request, edits)
        came = token_id if edits.forced is None else edits.forced
        request.output_ids.append(came)
        processor.advance(request, [came])
        if edits.end is not None:
            break

    thought = report(params, prompt, [*request.output_ids], [])
    written = len(ends) - 1  # of an end that the model began at its limit
    assert all(block["tokens"] <= max(budget, over) + written for block in thought)
    own = sum(block["tokens"] for block in thought) - over
    assert total is None or own <= total + written
    if len(ends) == 1 and budget == 0:
        assert own <= 0
