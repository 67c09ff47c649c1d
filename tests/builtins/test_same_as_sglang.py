"""Built-ins that replace classes of SGLang 0.5.23 give the same logits, bit for bit."""

import random
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("sglang.srt")

from sglang.srt.models.locate_anything import LocateAnythingBoxGrammarLogitProcessor
from sglang.srt.sampling import custom_logit_processor as stock

from sglang_lp import builtins
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.testing import FakeRequest
from support.oracles.definitions import thought

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BATCHES = [1, 2, 7, 64, 512]
VOCAB = 40
START, END, NEW_LINE = 1, 2, 3
IDS = {
    "thinking_start_token_id": START,
    "thinking_end_token_id": END,
    "new_line_token_id": NEW_LINE,
}

BOX = {"box_start_token_id": 1, "box_end_token_id": 2, "none_token_id": 4}


class StockBudget(stock.ThinkingBudgetLogitProcessor):
    THINKING_START_TOKEN_ID = START
    THINKING_END_TOKEN_ID = END
    NEW_LINE_TOKEN_ID = NEW_LINE


def disallowed(rng):
    return {"token_ids": rng.choices(range(VOCAB), k=rng.randint(0, 10))}


def no_repeat(rng):
    size = rng.choice([1, 1, 2, 2, 3, 4, 6])
    params = {"ngram_size": size, "window_size": size + rng.choice([0, 1, 5, 30])}
    if rng.random() < 0.5:
        params["whitelist_token_ids"] = rng.choice([None, [], rng.choices(range(6), k=2)])
    return params


def budget(rng):
    limits = [{"thinking_budget": limit} for limit in (0, 1, 2, 5, 20, 1000, None, -1, -1000)]
    return {**rng.choice([*limits, {}]), **IDS}


def box_grammar(rng):
    first = rng.choice([3, 5, 5, 10])
    return {**BOX, "coord_start_token_id": first, "coord_end_token_id": first + rng.choice([0, 9])}


class Pair(NamedTuple):
    ours: type
    theirs: type
    params_of: object
    #: Tokens that matter to them.
    tokens: list


PAIRS = [
    Pair(
        builtins.DisallowedTokensLogitsProcessor,
        stock.DisallowedTokensLogitsProcessor,
        disallowed,
        [*range(VOCAB)],
    ),
    Pair(
        builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
        stock.DeepseekOCRNoRepeatNGramLogitProcessor,
        no_repeat,
        [0, 0, 4, 5],
    ),
    Pair(
        builtins.ThinkingBudgetLogitProcessor,
        StockBudget,
        budget,
        [START, END, NEW_LINE, NEW_LINE, *range(4, 10)],
    ),
    Pair(
        builtins.LocateAnythingBoxGrammarLogitProcessor,
        LocateAnythingBoxGrammarLogitProcessor,
        box_grammar,
        [1, 1, *range(20)],
    ),
]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=[pair.ours.__name__ for pair in PAIRS])


def logits_of(rows, seed, dtype, vocab=VOCAB):
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 5).to(dtype)


def assert_same_bits(ours, theirs):
    kind = {2: torch.int16, 4: torch.int32}[ours.element_size()]
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours.view(kind), theirs.view(kind))


def apply_stock(processor, logits, custom_param_list):
    """Call SGLang's class; row by row where its lists may differ, which ends its server."""
    if isinstance(processor, stock.DisallowedTokensLogitsProcessor):
        for i, params in enumerate(custom_param_list):
            if params is not None:
                processor(logits[i : i + 1], [params])
        return logits
    return processor(logits, custom_param_list)


def allowed(pair, request, token):
    """Return another token in place of a start in an open block: SGLang counts anew from there."""
    if pair.theirs is StockBudget and token == START:
        inside = thought(request.origin_input_ids, request.output_ids, (START, END, NEW_LINE))
        return 4 if inside is not None else token
    return token


@pairs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", BATCHES)
def test_one_call(pair, dtype, rows):
    ours, theirs, params_of, tokens = pair
    rng = random.Random(rows)
    requests = []
    for _ in range(rows):
        request = FakeRequest(rng.choices(tokens, k=rng.randint(1, 30)))
        for token in rng.choices(tokens, k=rng.randint(0, 40)):
            request.append(allowed(pair, request, token))
        requests.append(None if rng.random() < 0.1 else request.custom_params(params_of(rng)))
    logits = logits_of(rows, rows, dtype)

    expected = apply_stock(theirs(), logits.clone(), requests)
    result = ours()(logits, requests)

    assert_same_bits(result, expected)


@pairs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_a_decode_in_changing_batches(pair, dtype, seed):
    ours, theirs, params_of, tokens = pair
    rng = random.Random(seed)
    instance, running, edited = ours(), [], 0
    for step in range(80):
        if len(running) < 12 and rng.random() < 0.5:
            request = FakeRequest(rng.choices(tokens, k=rng.randint(1, 20)))
            running.append((request, request.custom_params(params_of(rng))))
        if running and rng.random() < 0.1:
            running.remove(rng.choice(running))
        batch = [pair for pair in running if rng.random() < 0.9]
        rng.shuffle(batch)
        requests = [custom_params for _, custom_params in batch]
        if not requests:
            continue
        if rng.random() < 0.05:
            instance = ours()  # as after a merge
        logits = logits_of(len(batch), step, dtype)
        before = logits.clone()

        expected = apply_stock(theirs(), logits.clone(), requests)
        result = instance(logits, requests)

        assert_same_bits(result, expected)
        edited += int((result != before).any())
        for (request, _), row in zip(batch, result, strict=True):
            # The model says what matters; what is banned or forced decides.
            wish = allowed(pair, request, rng.choice(tokens))
            request.append(wish if row[wish].isfinite() else int(row.argmax()))
    assert edited > 5, "the decode did not show anything"


@pytest.mark.parametrize(
    "name",
    [
        "Qwen3ThinkingBudgetLogitProcessor",
        "DeepSeekR1ThinkingBudgetLogitProcessor",
        "Glm4MoeThinkingBudgetLogitProcessor",
        "InklingThinkingBudgetLogitProcessor",
    ],
)
def test_model_families(name):
    ours, theirs = getattr(builtins, name), getattr(stock, name)
    start, end = theirs.THINKING_START_TOKEN_ID, theirs.THINKING_END_TOKEN_ID
    new_line = theirs.NEW_LINE_TOKEN_ID
    requests = [
        FakeRequest(prompt, output).custom_params({"thinking_budget": 3})
        for prompt, output in [
            ([start], [9, 9]),
            ([start], [9, 9, 9]),
            ([start], [9, 9, 9, new_line]),
            ([start], [9, 9, end, 9, 9]),
            ([9], [start, 9, end, start, 9, 9]),
        ]
    ]
    logits = logits_of(5, 0, torch.float32, vocab=201_000)

    expected = theirs()(logits.clone(), requests)

    assert_same_bits(ours()(logits, requests), expected)


def test_every_class_of_sglang_has_its_builtin():
    theirs = {
        cls.__name__
        for cls in vars(stock).values()
        if isinstance(cls, type) and issubclass(cls, stock.CustomLogitProcessor)
    }

    assert theirs - {"CustomLogitProcessor"} <= {*builtins.__all__}


# What differs, on purpose


def test_a_start_in_an_open_block_begins_the_count_anew_in_sglang_alone():
    params = {**IDS, "thinking_budget": 3}
    request = FakeRequest([START], [9, START, 9]).custom_params(params)
    ours, theirs = (kind() for kind in (builtins.ThinkingBudgetLogitProcessor, StockBudget))
    logits = logits_of(1, 0, torch.float32)

    assert torch.equal(theirs(logits.clone(), [request]), logits)
    assert ours(logits.clone(), [request]).isfinite().nonzero().tolist() == [[0, NEW_LINE]]


def test_lists_of_one_batch_may_differ():
    requests = [FakeRequest([1]).custom_params({"token_ids": [i]}) for i in (4, 5)]
    with pytest.raises(AssertionError):
        stock.DisallowedTokensLogitsProcessor()(torch.zeros(2, 8), requests)

    logits = builtins.DisallowedTokensLogitsProcessor()(torch.zeros(2, 8), requests)

    assert (logits == -torch.inf).nonzero().tolist() == [[0, 4], [1, 5]]


@pytest.mark.parametrize(
    ("name", "params", "parameter"),
    [
        ("DeepseekOCRNoRepeatNGramLogitProcessor", {}, "ngram_size"),
        ("DeepseekOCRNoRepeatNGramLogitProcessor", {"ngram_size": 2}, "window_size"),
        (
            "DeepseekOCRNoRepeatNGramLogitProcessor",
            {"ngram_size": 0, "window_size": 9},
            "ngram_size",
        ),
        (
            "DeepseekOCRNoRepeatNGramLogitProcessor",
            {"ngram_size": 5, "window_size": 4},
            "window_size",
        ),
        (
            "DeepseekOCRNoRepeatNGramLogitProcessor",
            {"ngram_size": 1, "window_size": 9, "whitelist_token_ids": ["x"]},
            "whitelist_token_ids",
        ),
        ("Qwen3ThinkingBudgetLogitProcessor", {"thinking_budget": "9"}, "thinking_budget"),
    ],
)
def test_what_sglang_ignores_is_refused(name, params, parameter):
    logits = torch.zeros(1, 151_670)
    custom_params = FakeRequest([1, 1, 1], [1]).custom_params(params)
    ignored = getattr(stock, name)()(logits.clone(), [custom_params])
    if params.get("whitelist_token_ids") is None:
        assert torch.equal(ignored, logits)

    with pytest.raises(InvalidParameter) as refusal:
        getattr(builtins, name)()(logits, [custom_params])

    assert refusal.value.parameter == parameter


def test_ids_of_another_model_are_refused_where_sglang_fails():
    custom_params = FakeRequest([151_667]).custom_params({"thinking_budget": 0})
    with pytest.raises(IndexError):
        stock.Qwen3ThinkingBudgetLogitProcessor()(torch.zeros(1, 100), [custom_params])

    with pytest.raises(InvalidParameter, match="another model's"):
        builtins.Qwen3ThinkingBudgetLogitProcessor()(torch.zeros(1, 100), [custom_params])


def test_pad_values_of_images_are_no_tokens_where_sglang_fails():
    params = {"ngram_size": 2, "window_size": 100}
    custom_params = FakeRequest([5, 1_000_001, 5, 6, 5]).custom_params(params)
    with pytest.raises(IndexError):
        stock.DeepseekOCRNoRepeatNGramLogitProcessor()(torch.zeros(1, 9), [custom_params])

    logits = builtins.DeepseekOCRNoRepeatNGramLogitProcessor()(torch.zeros(1, 9), [custom_params])

    assert (logits == -torch.inf).nonzero().tolist() == [[0, 6]]


def test_a_history_that_nobody_passed_is_missed_where_sglang_ignores_it():
    params = {"ngram_size": 2, "window_size": 100}
    stock.DeepseekOCRNoRepeatNGramLogitProcessor()(torch.zeros(1, 9), [params])

    with pytest.raises(RequestError, match="__req__"):
        builtins.DeepseekOCRNoRepeatNGramLogitProcessor()(torch.zeros(1, 9), [params])
