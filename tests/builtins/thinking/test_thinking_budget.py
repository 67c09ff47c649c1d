"""Thinking blocks: delimiters of any length, and each way to close one or to keep it open."""

from array import array

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking import finder
from sglang_lp.builtins.thinking.finder import BlockTokens, Finder, finder_for
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.links import Serving
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest, ProcessorContract, run

VOCAB = 8
IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2, "new_line_token_id": 3}
MANY = {"thinking_start_token_ids": [1, 4], "thinking_end_token_ids": [3, 2, 3]}


class TestContract(ProcessorContract):
    processor = ThinkingBudgetLogitProcessor
    vocab_size = 50
    valid_params = (
        {"thinking_budget": 4, **MANY},
        {"thinking_budget": 0, **MANY, "closing_token_ids": [7, 3, 8]},
        {"thinking_budget": 9, **IDS, "soft_thinking_budget": 2, "soft_top_n": 20},
        {"thinking_budget": 9, **IDS, "soft_thinking_budget": 0, "closing_token_ids": [3, 5, 3]},
        {"thinking_budget": 9, **MANY, "min_thinking_tokens": 5, "eos_token_ids": [9]},
        {
            "thinking_budget": 9,
            **IDS,
            "min_thinking_tokens": 9,
            "wait_token_id": 6,
            "max_waits": 2,
            "eos_token_ids": [*range(9, 49)],
        },
        {"thinking_budget": 3, **IDS, "eos_token_ids": [2, *range(9, 49)]},
        {"thinking_budget": -1, **MANY, "soft_thinking_budget": 3, "min_thinking_tokens": 2},
        {**MANY, "min_answer_tokens": 6, "answer_room": 2, "eos_token_ids": [*range(9, 49)]},
    )
    invalid_params = (
        ({"thinking_budget": 5, **IDS, "thinking_start_token_ids": [1]}, "thinking_start_token_id"),
        ({"thinking_budget": 5, **IDS, "thinking_end": "</a>"}, "thinking_end"),
        ({"thinking_budget": 5, "thinking_end": "</a>"}, "thinking_start"),
        ({"thinking_budget": 5, "thinking_start": "<a>"}, "thinking_end"),
        ({"thinking_budget": 5, "thinking_start": "", "thinking_end": "b"}, "thinking_start"),
        ({"thinking_budget": 5, **MANY, "thinking_end_token_ids": []}, "thinking_end_token_ids"),
        ({"thinking_budget": 5, **MANY, "thinking_end_token_ids": [4]}, "thinking_end_token_ids"),
        ({"thinking_budget": 5, **MANY, "thinking_end_token_ids": [50]}, "thinking_end_token_ids"),
        ({"thinking_budget": 5, **MANY, "closing_token_ids": [3, 2, 3]}, "closing_token_ids"),
        ({"thinking_budget": 5, **MANY, "closing_token_ids": [5, 1, 4, 5]}, "closing_token_ids"),
        ({"thinking_budget": 5, **IDS, "closing_token_ids": [2]}, "closing_token_ids"),
        # What is forced would open the next block, and so on for ever.
        (
            {
                "thinking_budget": 0,
                "thinking_start_token_ids": [3, 3],
                "thinking_end_token_id": 2,
                "new_line_token_id": 3,
            },
            "new_line_token_id",
        ),
        (
            {
                "thinking_budget": 0,
                "thinking_start_token_ids": [2, 2],
                "thinking_end_token_ids": [2, 1, 1],
            },
            "thinking_start_token_ids",
        ),
        ({"thinking_budget": 5, **MANY, "thinking_end_token_ids": [5] * 17}, "thinking_end_token"),
        ({"thinking_budget": 5, **IDS, "closing_token_ids": [4] * 1025}, "closing_token_ids"),
        ({"thinking_budget": 5, **IDS, "soft_thinking_budget": 6}, "soft_thinking_budget"),
        ({"thinking_budget": 5, **IDS, "soft_top_n": 0}, "soft_top_n"),
        ({"thinking_budget": 5, **IDS, "min_thinking_tokens": 6}, "min_thinking_tokens"),
        (
            {"thinking_budget": 5, **IDS, "min_thinking_tokens": 3, "soft_thinking_budget": 2},
            "min_thinking_tokens",
        ),
        ({"thinking_budget": 5, **IDS, "wait_token_id": 4}, "wait_token_id"),
        (
            {"thinking_budget": 5, **IDS, "min_thinking_tokens": 3, "wait_token_id": 2},
            "wait_token_id",
        ),
        ({"thinking_budget": 5, **IDS, "max_waits": 0}, "max_waits"),
        ({"thinking_budget": 5, **IDS, "eos_token_ids": [1000]}, "eos_token_ids"),
    )


# The oracle: the rules of the class's docstring, over the whole history at every step.


def ends_with(tokens, sequence):
    return len(sequence) <= len(tokens) and tokens[len(tokens) - len(sequence) :] == sequence


def begun(tokens, sequence):
    """Say how many tokens of a beginning of ``sequence``, short of all, ``tokens`` ends with."""
    return max(k for k in range(len(sequence)) if ends_with(tokens, sequence[:k]))


def forced(row, token_id):
    return [0.0 if i == token_id else -torch.inf for i in range(len(row))]


def without(row, token_ids):
    return [-torch.inf if i in token_ids else logit for i, logit in enumerate(row)]


def expected(row, params, prompt, output):  # noqa: PLR0911, C901 - one for each rule
    start = params.get("thinking_start_token_ids") or [params["thinking_start_token_id"]]
    end = params.get("thinking_end_token_ids") or [params["thinking_end_token_id"]]
    tokens, opened, since = [*prompt, *output], None, 0
    for count in range(1, len(tokens) + 1):
        read = tokens[since:count]
        if ends_with(read, start) and (opened is None or count <= len(prompt)):
            opened = since = count
        elif opened is not None and ends_with(read, end):
            opened, since = None, count
    if opened is None:
        return row
    inside = len(tokens) - opened
    own = tokens[max(opened, len(prompt)) :]
    newline = params.get("new_line_token_id")
    message = params.get("closing_token_ids") or ([newline] if newline is not None else [])
    closing = [*message, *end]
    further = begun(own, closing) >= begun(own, end)
    next_of_closing = closing[begun(own, closing)] if further else end[begun(own, end)]
    next_of_end = end[begun(tokens, end)]
    eos = {*params.get("eos_token_ids", ())} - {*end}
    likeliest = sorted(range(len(row)), key=lambda i: -row[i])

    budget = params.get("thinking_budget")
    if budget is not None and 0 <= budget <= inside:
        return forced(row, next_of_closing)
    if inside < params.get("min_thinking_tokens", 0):
        early = eos | ({end[-1]} if begun(tokens, end) == len(end) - 1 else set())
        wait = params.get("wait_token_id")
        waits = 0 if wait is None else params.get("max_waits", 1)
        if own.count(wait) < waits and likeliest[0] in early:
            return forced(row, wait)
        return without(row, early)
    soft = params.get("soft_thinking_budget")
    if soft is not None and inside >= soft:
        at_hand = begun(own, closing) or begun(own, end) or (own and own[-1] == newline)
        near = {next_of_end, *eos} & {*likeliest[: params.get("soft_top_n", 5)]}
        if at_hand or near:
            return forced(row, next_of_closing)
    if likeliest[0] in eos:
        return forced(row, next_of_end)
    return without(row, eos)


token = st.integers(0, VOCAB - 1)


@st.composite
def requests(draw):  # noqa: C901 - one for each parameter
    params = {**draw(st.sampled_from([{}, {"thinking_budget": None}, {"thinking_budget": -1}]))}
    most = 12
    if draw(st.booleans()) or draw(st.booleans()):
        most = draw(st.integers(0, 12))
        params = {"thinking_budget": most}
    for side in ("start", "end"):
        if draw(st.booleans()):
            params[f"thinking_{side}_token_id"] = draw(st.integers(0, 3))
        else:
            ids = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
            params[f"thinking_{side}_token_ids"] = ids
    if draw(st.booleans()):
        params["new_line_token_id"] = draw(st.integers(0, 4))
    if draw(st.booleans()):
        params["closing_token_ids"] = draw(st.lists(token, max_size=4))
    if draw(st.booleans()):
        params["soft_thinking_budget"] = draw(st.integers(0, most))
        params["soft_top_n"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        most = params.get("soft_thinking_budget", most)
        params["min_thinking_tokens"] = draw(st.integers(0, most))
        if params["min_thinking_tokens"] and draw(st.booleans()):
            params["wait_token_id"] = draw(token)
            params["max_waits"] = draw(st.integers(1, 2))
    if draw(st.booleans()):
        params["eos_token_ids"] = draw(st.lists(token, max_size=2))
    prompt = draw(st.lists(token, min_size=1, max_size=6))
    if draw(st.booleans()):
        prompt += params.get("thinking_start_token_ids") or [params["thinking_start_token_id"]]
    try:
        parsed = ThinkingBudgetLogitProcessor.parse_params(params, VOCAB)
    except InvalidParameter:
        return None
    # The texts of a model's delimiters do not overlap, and so neither do their tokens.
    return None if overlap(parsed.start, parsed.end) else (params, prompt)


def overlap(start, end):
    pairs = [(start, end), (end, start)]
    return any(one[-k:] == other[:k] for one, other in pairs for k in range(1, len(one) + 1))


rows = st.permutations(range(VOCAB)).map(lambda order: [float(logit) for logit in order])


@settings(max_examples=400)
@given(request=requests().filter(bool), wishes=st.lists(rows, min_size=1, max_size=30))
def test_every_step_of_a_decode_follows_the_rules(request, wishes):
    params, prompt = request
    req = FakeRequest(prompt, served=True)
    custom_params = req.custom_params(params)
    parsed = ThinkingBudgetLogitProcessor.parse_params(params, VOCAB)
    attach_row(
        custom_params,
        [Serving(ThinkingBudgetLogitProcessor(), parsed)],
        StockHost(custom_params["__req__"], may_lag=False),
    )
    batch, output = Batch(), []
    for wish in wishes:
        logits = torch.tensor([wish])
        batch.step(logits, rows_of([custom_params]), [custom_params])
        assert req.to_finish is None
        assert logits[0].tolist() == expected(wish, params, prompt, output)
        output.append(int(logits[0].argmax()))
        req.append(output[-1])


@settings(max_examples=400)
@given(request=requests().filter(bool), output=st.lists(token, max_size=30), row=rows)
def test_any_history_has_one_answer(request, output, row):
    params, prompt = request
    logits = torch.tensor([row])

    ThinkingBudgetLogitProcessor()(logits, [FakeRequest(prompt, output).custom_params(params)])

    assert logits[0].tolist() == expected(row, params, prompt, output)


# The rules one by one, as a user would see them


@pytest.mark.parametrize("params", [{}, {"thinking_budget": None}, {"thinking_budget": -1}])
def test_no_budget_is_no_limit(params):
    script = [5] * 40

    assert generated({**params, **IDS}, [1], script, 40) == script


def generated(params, prompt, script, steps):
    return run(
        ThinkingBudgetLogitProcessor, params, prompt, script, steps=steps, vocab_size=VOCAB
    ).token_ids


def test_an_end_of_several_tokens_is_forced_whole():
    params = {"thinking_budget": 2, **MANY}

    assert generated(params, [1, 4], [5, 6, 7, 7, 7, 7], 6) == [5, 6, 3, 2, 3, 7]


def test_an_end_that_the_model_has_begun_is_completed():
    params = {"thinking_budget": 2, **MANY}

    assert generated(params, [1, 4], [5, 3, 7, 7, 7], 5) == [5, 3, 2, 3, 7]


def test_a_start_may_reach_from_the_prompt_into_the_output():
    params = {"thinking_budget": 1, **MANY}

    assert generated(params, [0, 1], [4, 5, 7, 7, 7, 7], 6) == [4, 5, 3, 2, 3, 7]


def test_every_block_gets_the_budget():
    params = {"thinking_budget": 1, **IDS}
    script = [1, 5, 7, 7, 1, 6, 7, 7, 7]

    assert generated(params, [0], script, 9) == [1, 5, 3, 2, 1, 6, 3, 2, 7]


@pytest.mark.parametrize(
    ("delimiters", "prompt"),
    [
        # The prompt ends with the first token of the end delimiter, as in chat templates.
        ({"thinking_start_token_id": 1, "thinking_end_token_ids": [3, 2]}, [1, 3]),
        # ... which is also the last token of the start delimiter.
        ({"thinking_start_token_ids": [1, 3], "thinking_end_token_ids": [3, 2]}, [1, 3]),
    ],
)
def test_a_minimum_holds_wherever_the_end_begins(delimiters, prompt):
    params = {"thinking_budget": 9, "min_thinking_tokens": 4, **delimiters}

    assert generated(params, prompt, [2, 3, 2, 3, 2], 5) == [0, 3, 0, 3, 2]


def test_an_end_outside_a_block_is_free():
    params = {"thinking_budget": 0, **IDS, "min_thinking_tokens": 0, "eos_token_ids": [7]}

    assert generated(params, [0], [2, 7, 2, 5], 4) == [2, 7, 2, 5]


def test_no_budget_leaves_an_empty_block():
    params = {"thinking_budget": 0, **IDS}

    assert generated(params, [1], [5] * 4, 4) == [3, 2, 5, 5]
    assert generated(params, [0], [1, 5, 5, 5], 4) == [1, 3, 2, 5]


def test_a_message_takes_the_place_of_the_newline():
    params = {"thinking_budget": 1, **IDS, "closing_token_ids": [6, 6, 3]}

    assert generated(params, [1], [5] * 7, 7) == [5, 6, 6, 3, 2, 5, 5]


def test_a_soft_budget_closes_at_a_newline_and_not_before():
    params = {"thinking_budget": 20, **IDS, "soft_thinking_budget": 2, "soft_top_n": 1}

    assert generated(params, [1], [3, 4, 5, 3, 6, 6], 6) == [3, 4, 5, 3, 2, 6]


def test_a_soft_budget_closes_with_the_message_after_a_newline():
    params = {"thinking_budget": 20, **IDS, "soft_thinking_budget": 2, "soft_top_n": 1}

    played = generated({**params, "closing_token_ids": [6, 7]}, [1], [5, 5, 5, 3, 5, 5, 5, 4], 8)

    assert played == [5, 5, 5, 3, 6, 7, 2, 4]


def test_a_soft_budget_closes_when_the_end_is_likely():
    params = {"thinking_budget": 20, **IDS, "soft_thinking_budget": 2, "soft_top_n": 3}

    def model(tokens):  # wants to go on, with the end as third choice after four tokens
        logits = [0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 2.0, 1.5]
        logits[2] = 1.8 if len(tokens) >= 5 else 0.0
        return logits

    assert generated(params, [1], model, 6) == [5, 5, 5, 5, 3, 2]


def test_a_minimum_puts_a_wait_in_place_of_the_end():
    params = {"thinking_budget": 20, **IDS, "min_thinking_tokens": 4, "wait_token_id": 6}

    # The second end is kept out, so that the next best token comes; then it is long enough.
    assert generated(params, [1], [5, 2, 2, 5, 2, 7], 6) == [5, 6, 0, 5, 2, 7]


def test_a_start_inside_a_block_is_a_part_of_it():
    params = {"thinking_budget": 4, **IDS}

    assert generated(params, [1], [5, 1, 1, 1, 1, 1, 7], 7) == [5, 1, 1, 1, 3, 2, 7]


def test_the_latest_start_counts_in_a_prompt():
    assert generated({"thinking_budget": 2, **IDS}, [1, 5, 5, 5, 1], [5] * 6, 4) == [5, 5, 3, 2]


def test_a_tool_start_ends_a_block_and_nothing_is_forced_in_the_call():
    params = {"thinking_budget": 3, **IDS, "tool_start_token_ids": [4]}

    assert generated(params, [1], [5, 4, 6, 6, 6, 6, 7], 7) == [5, 4, 6, 6, 6, 6, 7]


def test_a_block_goes_on_with_its_count_after_a_tool_call():
    params = {"thinking_budget": 3, **IDS, "tool_start_token_ids": [4]}

    script = [5, 5, 4, 6, 6, 6, 1, 5, 5, 5]
    assert generated(params, [1], script, 10) == [5, 5, 4, 6, 6, 6, 1, 5, 3, 2]
    # Tokens of the call do not count, and neither do those of the prompt before it.
    assert generated(params, [1, 5, 5, 4, 1], [4, 1, 5, 5, 5, 5], 7) == [4, 1, 5, 5, 5, 3, 2]
    # Two calls, and the budget is spent in the second part.
    script = [5, 4, 1, 5, 4, 6, 1, 5, 5, 5]
    assert generated(params, [1], script, 10) == [5, 4, 1, 5, 4, 6, 1, 5, 3, 2]


def test_an_end_after_a_tool_call_ends_the_block():
    params = {"thinking_budget": 3, **IDS, "tool_start_token_ids": [4]}

    script = [5, 5, 4, 6, 2, 1, 5, 5, 5, 5, 5]
    assert generated(params, [1], script, 10) == [5, 5, 4, 6, 2, 1, 5, 5, 5, 3]


def test_an_answer_that_begins_inside_a_block_is_counted_from_its_first_token():
    params = {"thinking_budget": 3, **IDS, "force_reasoning": True}

    assert generated(params, [8], [5] * 9, 6) == [5, 5, 5, 3, 2, 5]
    # A start that comes after all is no thought, once.
    assert generated(params, [8], [1, 5, 5, 5, 5], 5) == [1, 5, 5, 5, 3]
    assert generated(params, [8], [1, 1, 1, 1, 1], 5) == [1, 1, 1, 1, 3]
    assert generated(params, [8], [5, 1, 5, 5, 5], 4) == [5, 1, 5, 3]


def test_an_early_end_of_sequence_becomes_the_end_of_the_block():
    params = {"thinking_budget": 20, **IDS, "eos_token_ids": [7]}

    assert generated(params, [1], [5, 7, 5, 7], 4) == [5, 2, 5, 7]


# A stock server, which shows the newest token one step late


def played_late(params, script, steps):
    """Play a decode whose newest token is not seen in time; return the request and its tokens."""
    req = FakeRequest([1], served=True)
    custom_params = req.custom_params(params)
    output = []
    for position in range(steps):
        req.kv.kv_committed_len = 1 + position
        logits = torch.zeros(1, VOCAB)
        logits[0, script[position]] = 1.0
        ThinkingBudgetLogitProcessor()(logits, [custom_params])
        if len(output) > len(req.output_ids):
            req.output_ids.append(output[len(req.output_ids)])
        output.append(int(logits[0].argmax()))
    return req, output


def test_a_plain_budget_needs_no_newest_token():
    req, output = played_late({"thinking_budget": 3, **IDS}, [5] * 7, 7)

    assert req.to_finish is None
    assert output == [5, 5, 5, 3, 2, 5, 5]


def test_a_plain_budget_forces_nothing_in_a_tool_call_that_it_sees_late():
    params = {"thinking_budget": 3, **IDS, "tool_start_token_ids": [4]}

    def late(*script):
        return played_late(params, script, len(script))[1]

    assert late(5, 4, 6, 6, 6, 6, 6) == [5, 4, 6, 6, 6, 6, 6]
    # At the last token of a budget no call may open, because it could not be seen in time.
    assert late(5, 5, 4, 6, 6, 6) == [5, 5, 0, 3, 2, 6]
    # What a block had before the call counts.
    assert late(5, 4, 6, 6, 1, 5, 5, 5, 5, 5) == [5, 4, 6, 6, 1, 5, 5, 3, 2, 5]
    assert late(4, 1, 5, 4, 6, 6, 1, 5, 5, 5, 5, 5) == [4, 1, 5, 4, 6, 6, 1, 5, 5, 3, 2, 5]


@pytest.mark.parametrize(
    "params",
    [
        MANY,
        {**IDS, "closing_token_ids": [5]},
        {**IDS, "soft_thinking_budget": 900},
        {**IDS, "min_thinking_tokens": 1},
        {**IDS, "eos_token_ids": [7]},
    ],
)
def test_anything_else_is_refused_there_at_once_and_not_guessed(params):
    pytest.importorskip("sglang")
    req, output = played_late({"thinking_budget": 900, **params}, [5] * 3, 3)

    assert output == [5, 5, 5]
    assert req.to_finish is not None
    assert "--disable-overlap-schedule" in req.to_finish.message


def test_anything_works_on_a_stock_server_that_shows_every_token():
    req = FakeRequest([1, 4], served=True)
    custom_params = req.custom_params({"thinking_budget": 1, **MANY})
    for _ in range(5):
        logits = torch.zeros(1, VOCAB)
        ThinkingBudgetLogitProcessor()(logits, [custom_params])
        req.append(int(logits[0].argmax()))

    assert [*req.output_ids] == [0, 3, 2, 3, 0]


# Delimiter ids that the request does not give


def test_without_ids_and_tokenizer_a_request_is_refused_by_name():
    with pytest.raises(RequestError, match="thinking_start_token_id"):
        run(ThinkingBudgetLogitProcessor, {"thinking_budget": 1}, [1], [5], steps=1)


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.sampled_from([((0,), (1,)), ((0, 1), (2,)), ((2,), (0, 1, 1)), ((0, 0, 3), (1, 2))]),
    st.integers(1, 9),
)
def test_the_latest_delimiter_of_a_prompt_is_found_wherever_the_search_is_parted(
    prompt, delimiters, piece
):
    found = {}
    for start in range(len(prompt)):
        for opens, delimiter in ((False, delimiters[1]), (True, delimiters[0])):
            if tuple(prompt[start : start + len(delimiter)]) == delimiter:
                found[start + len(delimiter)] = opens
    expected = (max(found), found[max(found)]) if found else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finder, "_PIECE", piece)
        markers = finder_for(BlockTokens(*delimiters))
        assert markers.latest_of_prompt(array("q", prompt)).latest == expected
        assert markers.latest_of_prompt(prompt).latest == expected


def test_copies_of_a_long_prompt_without_a_delimiter_are_searched_once(monkeypatch):
    markers = finder_for(BlockTokens((3,), (4,)))
    first = markers.latest_of_prompt(array("q", [7] * 10_000))
    monkeypatch.setattr(Finder, "_latest", lambda *_: None)
    again = markers.latest_of_prompt(array("q", [7] * 10_000))
    other = markers.latest_of_prompt(array("q", [*[7] * 9_999, 8]))

    assert again is first
    assert other is not first
