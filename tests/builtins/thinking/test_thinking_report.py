"""Reports on thinking blocks, compared with a naive reading of the tokens."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.links import Serving
from sglang_lp.testing import FakeRequest

VOCAB = 8
SHORT = {"thinking_start_token_id": 1, "thinking_end_token_id": 2, "new_line_token_id": 3}
LONG = {
    "thinking_start_token_ids": [1, 4],
    "thinking_end_token_ids": [2, 5],
    "new_line_token_id": 3,
}

token = st.integers(0, VOCAB - 1)


def naive(params, prompt, output, who):
    """Read blocks token by token; ``who`` says for each token of the output who decided on it."""
    start = params.get("thinking_start_token_ids") or [params["thinking_start_token_id"]]
    end = params.get("thinking_end_token_ids") or [params["thinking_end_token_id"]]
    tokens, opened, found = [*prompt, *output], None, []
    for count in range(1, len(tokens) + 1):
        generated = count > len(prompt)
        inside = generated and opened is not None  # where a start is a part of the block
        opens = not inside and tokens[:count][-len(start) :] == start
        ends = not opens and tokens[:count][-len(end) :] == end
        if inside and ends:
            long = count - opened - len(end)
            found.append({"tokens": long, "ended": who[count - len(prompt) - 1]})
        if opens or ends:
            opened = count if opens else None
    if opened is not None and len(tokens) > max(opened, len(prompt)):
        found.append({"tokens": len(tokens) - opened, "ended": None})
    return found


@given(
    ids=st.sampled_from([SHORT, LONG]),
    budget=st.integers(0, 6),
    prompt=st.lists(token, min_size=1, max_size=5),
    wishes=st.lists(token, min_size=1, max_size=25),
)
def test_each_block_is_reported_with_its_length_and_who_ended_it(ids, budget, prompt, wishes):
    params = {**ids, "thinking_budget": budget}
    req = FakeRequest(prompt, served=True)
    custom_params = req.custom_params(params)
    parsed = ThinkingBudgetLogitProcessor.parse_params(params, VOCAB)
    attach_row(custom_params, [Serving(ThinkingBudgetLogitProcessor(), parsed)])
    (row,) = rows_of([custom_params])
    batch, output, who = Batch(), [], []
    for wish in wishes:
        logits = torch.zeros(1, VOCAB)
        logits[0, wish] = 5.0
        batch.step(logits, [row], [custom_params])
        forced = bool((logits == -torch.inf).sum() == VOCAB - 1)
        who.append("budget" if forced else "model")
        output.append(int(logits[0].argmax()))
        req.append(output[-1])
    row.edit_log.finish(output)

    spans = row.edit_log.forced.before(len(output))
    assert [i for i, one in enumerate(who) if one == "budget"] == [
        i for start, stop in spans for i in range(start, stop)
    ]
    reported = ThinkingBudgetLogitProcessor().report(parsed, prompt, output, spans)
    assert reported == {"thinking": naive(params, prompt, output, who)}


def ended(params, output, forced):
    parsed = ThinkingBudgetLogitProcessor.parse_params({**SHORT, **params})
    (block,) = ThinkingBudgetLogitProcessor().report(parsed, [1], output, forced)["thinking"]
    return block["ended"]


def test_a_soft_budget_an_early_end_and_the_model_are_told_apart():
    params = {"thinking_budget": 9, "soft_thinking_budget": 3, "eos_token_ids": [7]}

    assert ended(params, [5, 5, 5, 5, 3, 2], [[4, 6]]) == "soft"
    assert ended(params, [5, 5, 5, 3, 2], [[4, 5]]) == "soft"
    assert ended(params, [5, 2], [[1, 2]]) == "early_end"
    assert ended(params, [5, 5, 5, 5, 2], []) == "model"
    assert ended(params, [5, 5, 5, 5, 2], [[0, 4]]) == "model"
    assert ended(params, [5] * 9 + [3, 2], [[9, 11]]) == "budget"
    assert ended(params, [5] * 9, []) is None
