"""The replay finds the processors' edits from only the tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp import Edits, LogitProcessor, Request, builtins
from sglang_lp.catalogue.build import build
from sglang_lp.client import attach
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, run
from sglang_lp.trace import Exchange, What, trace_answer, write_lines
from support.catalogues import opened
from support.examples import examples
from support.fakes.exchanges import budget, chained, ids, spelled, tokenizer, traced
from support.watermarks import GREEN_SCHEME


def words_at(trace, place):
    return [trace.words(trace.edits[index]) for index in trace.tokens[place].edits]


def place_of(trace, text):
    return next(place for place, token in enumerate(trace.tokens) if token.text == text)


def test_a_forced_end_has_its_cause_in_words():
    trace = chained()

    assert words_at(trace, place_of(trace, "</think>")) == [
        "`</think>` forced: 6 of 6 tokens thought"
    ]
    assert trace.problems == []


def test_the_links_of_a_chain_are_told_apart():
    trace = chained()
    five = place_of(trace, "</think>") + 4

    assert [name for name, _ in trace.processors] == [
        "ThinkingBudgetLogitProcessor",
        "BadWordsLogitProcessor",
    ]
    assert trace.processors[1][1] == {"words": ["is a"]}
    assert [trace.edits[index].by for index in trace.tokens[five].edits] == [1]
    assert {" a", " and", " answer"} <= {trace.names[i] for i in trace.edits[-1].token_ids}


def test_a_block_says_who_closed_it_and_where_the_budget_was_spent():
    (block,) = chained().blocks
    (free,) = traced(budget(6), "<think> one two\n</think> three").blocks

    assert (block.start, block.stop, block.spent) == (1, 9, 7)
    assert block.closed == "ThinkingBudgetLogitProcessor: 6 of 6 tokens thought"
    assert (free.stop, free.spent, free.closed) == (5, None, "the model")


def test_a_budget_that_the_server_ignored_shows_at_the_first_token_past_it():
    trace = traced(budget(2), "<think> one two three four</think>")

    assert trace.problems[0] == 3
    assert "another token was forced here" in trace.tokens[3].problem


@pytest.mark.parametrize(
    ("attachment", "output", "place", "problem"),
    [
        (attach("BadWordsLogitProcessor", words=["sheep"]), " one sheep", 1, "was banned"),
        (attach("AllowedTokensLogitProcessor", token_ids=ids(" one")), " two", 0, "allowed"),
        (attach("ForcedSequenceLogitProcessor", text=" one two"), " one three", 1, "forced"),
        (
            attach(
                "TriggerPhraseLogitProcessor",
                before_token_ids=ids("<|end|>"),
                phrase_token_ids=ids(" and"),
            ),
            " one<|end|>",
            1,
            "was banned",
        ),
    ],
)
def test_a_token_that_the_processor_forbade_is_a_problem(attachment, output, place, problem):
    trace = traced(attachment, output)

    assert trace.problems == [place]
    assert problem in trace.tokens[place].problem


def test_an_id_that_the_tokenizer_lacks_is_a_problem_there():
    answer = {"output_ids": [*ids(" one"), 4000]}
    trace = attach("DRYLogitProcessor").trace(answer, " two", tokenizer=tokenizer())

    assert trace.tokens[1].problem == "the tokenizer has no token 4000"
    assert trace.tokens[1].name == "token 4000"


def test_where_a_rule_asked_for_the_likeliest_tokens_the_trace_says_so():
    trace = traced(budget(9, soft_thinking_budget=2, soft_top_n=7), "<think> one two three four")

    assert [token.looked for token in trace.tokens] == [0, 0, 0, 7, 7]


#: What the example of a catalogue asks for: items of two tokens that the answer has.
PRODUCTS = opened(
    products=build(
        np.array([[*ids(" one"), *ids(" two")]], np.int32),
        np.array([b"sku-18"]),
        sets={name: np.array([True]) for name in ("eu", "fresh", "uk")},
    )
)
ALL = [
    name for name in builtins.__all__ if getattr(getattr(builtins, name), "family", None) is None
]


@pytest.mark.parametrize("name", ALL)
def test_every_built_in_can_be_traced_with_its_example(name):
    processor = getattr(builtins, name)
    served = ServedModel(tokenizer(), 200_000, tuple(ids("<|end|>")), catalogues=PRODUCTS)
    served = served._replace(watermark=GREEN_SCHEME)
    answer = ids(" one two</think> one two one two<|end|> three" * 4)
    trace = trace_answer(processor, Exchange(None, processor.example, ids(" a"), answer), served)

    assert not any("failed" in token.problem for token in trace.tokens[:1])
    for edit in trace.edits:
        assert trace.words(edit)
        assert "None" not in edit.why


class Raising(LogitProcessor):
    def edit(self, request: Request, edits: Edits) -> None:
        if request.position == 1:
            raise ValueError("a bug")


class Shutting(LogitProcessor):
    def edit(self, request: Request, edits: Edits) -> None:
        request.logits[7] = float("-inf")


class Dense(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        logits[:, 5:8] = float("-inf")
        return logits


class Ending(LogitProcessor):
    def edit(self, request: Request, edits: Edits) -> None:
        if request.position == 1:
            edits.finish("enough")


def replayed(processor, output):
    return trace_answer(processor, Exchange(None, {}, [], ids(output)), ServedModel(tokenizer()))


def test_a_fault_ends_the_replay_at_its_token():
    trace = replayed(Raising, " one two three")

    assert trace.problems == [1, 2]
    assert "a bug" in trace.tokens[1].problem


def test_an_answer_that_goes_on_after_its_end_is_a_problem():
    trace = replayed(Ending, " one two three")

    assert words_at(trace, 1) == ["answer ended: enough"]
    assert trace.problems == [2]


def test_tokens_near_the_largest_logit_are_told_in_words():
    trace = replayed(builtins.TopNSigmaLogitProcessor, " one two")

    words = "tokens excluded whose logit is over 1 sigma below the largest"
    assert words_at(trace, 0) == words_at(trace, 1) == [words]
    assert trace.problems == []


def test_scaled_logits_are_told_in_words():
    class Cool(LogitProcessor):
        def edit(self, request, edits):
            edits.scale(2)

    assert words_at(replayed(Cool, " one"), 0) == ["all logits times 2"]


@pytest.mark.parametrize(("processor", "shut"), [(Shutting, (7,)), (Dense, (5, 6, 7))])
def test_of_changed_logits_a_trace_shows_what_was_shut(processor, shut):
    trace = replayed(processor, " one two")

    (edit,) = (trace.edits[index] for index in trace.tokens[1].edits)
    assert edit[1:3] == (What.REWRITTEN, shut)


def test_parameters_that_a_server_refuses_are_refused():
    with pytest.raises(InvalidParameter, match="min_tokens"):
        trace_answer(
            builtins.MinLengthLogitProcessor, Exchange(None, {"min_tokens": 0}, [], [1]), None
        )


def test_a_class_with_the_contract_of_sglang_alone_is_refused():
    with pytest.raises(RequestError, match="LogitProcessor"):
        trace_answer(object, Exchange(None, {}, [], [1]), None)


def test_a_character_of_several_tokens_belongs_to_the_last_of_them():
    trace = spelled("a€b")

    assert [token.text for token in trace.tokens] == ["a", "", "", "€", "b"]
    assert [token.name for token in trace.tokens] == ["", "e2", "82", "", ""]
    assert trace.text == "a€b"


def test_end_tokens_that_the_request_leaves_out_come_from_the_models_directory(tmp_path):
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    (end,) = ids("<|end|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    answer = {"output_ids": [end]}
    trace = attach("MinLengthLogitProcessor", min_tokens=3).trace(answer, [1], tokenizer=tmp_path)

    assert "this token was banned" in trace.tokens[0].problem


def test_without_a_tokenizer_tokens_are_numbers():
    trace = trace_answer(None, Exchange(None, {}, [], [7, 8]), None)

    assert [token.name for token in trace.tokens] == ["token 7", "token 8"]
    assert trace.problems == []


@examples(0.6)
@given(script=st.lists(st.integers(0, 30), max_size=60), start=st.lists(st.integers(0, 30)))
@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (
            builtins.ThinkingBudgetLogitProcessor,
            {
                "thinking_budget": 5,
                "thinking_start_token_id": 1,
                "thinking_end_token_id": 2,
                "new_line_token_id": 3,
            },
        ),
        (
            builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
            {"ngram_size": 2, "window_size": 20},
        ),
        (
            builtins.ChainLogitProcessor,
            {
                "chain": ["MinLengthLogitProcessor", "LoopBreakerLogitProcessor"],
                "0.min_tokens": 9,
                "0.eos_token_ids": [4],
                "1.max_pattern_size": 3,
                "1.min_count": 2,
            },
        ),
        (
            builtins.ChainLogitProcessor,
            {
                "chain": ["DisallowedTokensLogitsProcessor", "ScheduledBiasLogitProcessor"],
                "0.token_ids": [4, 6],
                "1.token_ids": [5],
                "1.bias": 2.0,
                "1.start": 3,
                "1.end": 7,
            },
        ),
    ],
)
def test_each_step_is_edited_as_a_new_request_with_that_history(processor, params, script, start):
    """The oracle starts anew at every step, on logits of its own; nothing sleeps there."""
    import torch

    prompt = [9, *start]
    answer = run(processor, params, prompt, script, steps=len(script), vocab_size=32).token_ids
    trace = trace_answer(processor, Exchange(None, params, prompt, answer), None)

    assert trace.problems == []
    for place, token in enumerate(trace.tokens):
        request = FakeRequest(prompt, answer[:place]).custom_params(params)
        row = processor()(torch.zeros(1, 32), [request])[0]
        edits = [trace.edits[index] for index in token.edits]
        forced = {i for edit in edits if edit.what is What.FORCED for i in edit.token_ids}
        banned = {i for edit in edits if edit.what is What.BANNED for i in edit.token_ids}
        biased = {i for edit in edits if edit.what is What.BIASED for i in edit.token_ids}
        shut = {i for i in range(32) if row[i] == float("-inf")}
        assert shut == ({*range(32)} - forced if forced else banned)
        assert {i for i in range(32) if row[i] > 0} == (biased if not forced else set())


def test_the_text_has_a_line_for_each_token_that_was_edited():
    lines = write_lines(chained())

    assert "`</think>` forced: 6 of 6 tokens thought" in lines
    assert r"`\n` forced" in lines
    assert "problems   none" in lines
    assert all(one.isprintable() for line in lines.splitlines() for one in line)


def test_the_json_holds_the_same():
    trace = chained()
    found = json.loads(json.dumps(trace.to_dict()))

    assert [token["token_id"] for token in found["tokens"]] == [
        one.token_id for one in trace.tokens
    ]
    assert "".join(token.get("text", "") for token in found["tokens"]) == trace.text
    assert found["blocks"][0]["closed"] == trace.blocks[0].closed
    assert found["problems"] == []


def test_a_notebook_shows_the_page_in_a_frame_that_may_run_its_script_only():
    shown = chained()._repr_html_()

    assert shown.startswith("<iframe")
    assert 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2
