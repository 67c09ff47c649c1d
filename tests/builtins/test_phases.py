"""A rule with ``where`` edits in its phase as if the tokens of the phase were the answer."""

import random
from itertools import pairwise

import pytest
import torch

from sglang_lp import builtins
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.foreseen import foreseen
from sglang_lp._engine.history.row import Row
from sglang_lp._engine.turns.view import PhaseTokens
from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import prepare
from sglang_lp.request import History
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest, ProcessorContract
from support.models.vocabularies import END, byte_level
from support.watermarks import GREEN_SCHEME, GreenMarks

CORPUS = ["the cat sat, 12 mats", "a cat and a mat, a hat and a bat"] * 9
TOKENIZER = byte_level(CORPUS, 330)
TOKENIZER.add_tokens(["<think>", "</think>"])
START, CLOSE = map(TOKENIZER.token_to_id, ("<think>", "</think>"))
EOS = TOKENIZER.token_to_id(END)
VOCAB_SIZE = 340
A, B, C, D = TOKENIZER.encode("the cat, 12").ids[:4]

#: A request of each built-in that takes ``where``.
CASES = {
    "AllowedTokensLogitProcessor": {"token_ids": [A, B, C, START, CLOSE, EOS]},
    "BadWordsLogitProcessor": {"words": ["cat", "he"], "token_ids": [A, B, C], "lengths": [2, 1]},
    "BiasWordsLogitProcessor": {"words": [" cat", " mat"], "weights": [4.0, 6.0]},
    "ChoiceLogitProcessor": {"choices": ["the cat", "a mat", "the"]},
    "CiteFromPromptLogitProcessor": {"bias": 1.5},
    "DRYLogitProcessor": {"dry_sequence_breakers": [","], "dry_penalty_last_n": 12},
    "DeepseekOCRNoRepeatNGramLogitProcessor": {"ngram_size": 2, "window_size": 9},
    "DisallowedTokensLogitsProcessor": {"token_ids": [A, B]},
    "ForcedSequenceLogitProcessor": {"text": "a hat"},
    "ForcedWordsLogitProcessor": {"words": [" cat", " hat"], "within_tokens": 20},
    "GenLengthLogitProcessor": {"bias": 0.5, "complete_sentences": True},
    "LoopBreakerLogitProcessor": {"max_pattern_size": 3, "min_count": 2},
    "MinLengthLogitProcessor": {"min_tokens": 6},
    "ScheduledBiasLogitProcessor": {"token_ids": [A], "bias": 3.0, "start": 3, "end": 9},
    "ScriptLogitProcessor": {"scripts": ["Latin"], "mode": "ban"},
    "TemperatureLogitProcessor": {"temperature": 0.5},
    "ToolCallLimitLogitProcessor": {
        "max_tool_calls": 1,
        "tool_call_starts": [" cat"],
        "tool_call_end": ",",
    },
    "TopNSigmaLogitProcessor": {"top_n_sigma": 1.5},
    "TriggerPhraseLogitProcessor": {"trigger": "cat", "phrase": " sat"},
    "WatermarkLogitProcessor": {},
}
#: Classes that have what only a server gives.
SERVED = {"WatermarkLogitProcessor": GreenMarks}
#: They write in a form, or in a phase, of their own.
WITHOUT = {
    "CatalogueLogitProcessor",
    "ChainLogitProcessor",
    "LocateAnythingBoxGrammarLogitProcessor",
}


def test_every_built_in_but_those_with_a_form_of_their_own_takes_a_phase():
    kinds = {name: getattr(builtins, name) for name in builtins.__all__}
    takes = {name for name, kind in kinds.items() if issubclass(kind.Params, PhasedParams)}

    assert takes == {*CASES}
    assert {*kinds} - takes == WITHOUT | {name for name in kinds if "ThinkingBudget" in name}


def test_a_rule_in_a_phase_that_begins_with_the_request_holds_after_resumed_tokens():
    params = {"token_ids": [A, B], "lengths": [2], "where": "answer"}
    served = ServedModel(TOKENIZER, VOCAB_SIZE)
    prompt = [C, D, C]
    request = FakeRequest(prompt)
    (serving,) = prepare(builtins.BadWordsLogitProcessor(), params, served)
    given = request.custom_params(params)
    host = StockHost(given["__req__"], may_lag=False)
    host.resumed = len(prompt) - 1
    row = attach_row(given, [serving._replace(skipped=host.resumed)], host)

    banned = []
    for token_id in (A, START, A, CLOSE, A, C):
        logits = torch.zeros(1, VOCAB_SIZE)
        Batch().step(logits, [row], [given])
        banned.append(logits[0, B].item() == -torch.inf)
        request.append(token_id)

    assert banned == [False, True, False, False, False, True]


def _contract(name):
    params = CASES[name]
    own = {
        "processor": getattr(builtins, name),
        "valid_params": ({**params, "where": "thinking"}, {**params, "where": "answer"}),
        "invalid_params": (({**params, "where": "prompt"}, "where"),),
        "vocab_size": VOCAB_SIZE,
        "token_ids": (START, CLOSE, START, CLOSE, EOS),
        "tokenizer": TOKENIZER,
        "eos_token_ids": (EOS,),
    }
    return type(f"Test{name}", (ProcessorContract,), own)


# A choice has no edits for the contract's histories, which are random.
for _name in ("BadWords", "ForcedSequence", "ForcedWords", "MinLength", "TriggerPhrase"):
    globals()[f"Test{_name}"] = _contract(f"{_name}LogitProcessor")
for _name in ("DisallowedTokensLogitsProcessor", "DeepseekOCRNoRepeatNGramLogitProcessor"):
    globals()[f"Test{_name}"] = _contract(_name)


# Every step of an answer


def phase_of(prompt_ids, output_ids, where):
    """Return the tokens of a phase by definition, and whether the next token is one."""
    is_open = False
    for token_id in prompt_ids:
        is_open = token_id == START or (is_open and token_id != CLOSE)
    found = []
    for token_id in output_ids:
        if is_open == (where == "thinking"):
            found.append(token_id)
        is_open = token_id == START or (is_open and token_id != CLOSE)
    return found, is_open == (where == "thinking")


def edited(processor, prompt_ids, output_ids, params, logits):
    request = FakeRequest(prompt_ids, output_ids, tokenizer=TOKENIZER, eos_token_ids=[EOS])
    return processor()(logits.clone(), [request.custom_params(params)])


@pytest.mark.parametrize("where", ["thinking", "answer"])
@pytest.mark.parametrize("name", CASES)
def test_the_tokens_of_a_phase_are_the_whole_answer_to_its_rule(name, where):
    some, processor = random.Random(name), SERVED.get(name) or getattr(builtins, name)
    params = CASES[name]
    acted = slept = 0
    for _ in range(8):
        pool = [START, CLOSE, A, B, C, D, *some.choices(range(1, 300), k=3)]
        prompt_ids = some.choices(pool, k=some.randint(1, 12))
        request = FakeRequest(prompt_ids, tokenizer=TOKENIZER, eos_token_ids=[EOS])
        custom_params = request.custom_params({**params, "where": where})
        for _ in range(30):
            logits = torch.tensor([[some.gauss(0, 4) for _ in range(VOCAB_SIZE)]])
            found = processor()(logits.clone(), [custom_params])

            own, holds = phase_of(prompt_ids, request.output_ids, where)
            expected = edited(processor, prompt_ids, own, params, logits) if holds else logits
            assert torch.equal(found, expected), (request.output_ids, own, holds)

            acted, slept = acted + (holds and not torch.equal(found, logits)), slept + (not holds)
            left = [token_id for token_id in pool if found[0, token_id] > -torch.inf]
            request.append(some.choice(left) if left else int(found.argmax()))
    assert slept
    assert acted


def test_the_tokens_of_a_phase_are_read_like_a_list():
    some = random.Random(1)
    for _ in range(200):
        whole = [*range(some.randint(0, 12))]
        cuts = sorted(some.choices(range(len(whole) + 1), k=6))
        parts = [(start, stop) for start, stop in [*pairwise(cuts)][::2] if start < stop]
        expected = [token_id for start, stop in parts for token_id in whole[start:stop]]
        lengths = [stop - start for start, stop in parts]
        spans = tuple((start, sum(lengths[:i])) for i, (start, _) in enumerate(parts))
        tokens = PhaseTokens(whole, spans, len(expected))
        assert [*tokens] == expected
        for _ in range(20):
            at = slice(*(some.choice([None, *range(-9, 9)]) for _ in range(2)))
            assert [*tokens[at]] == expected[at]
            assert [*tokens[at.start : at.stop : 2]] == expected[at.start : at.stop : 2]


def test_the_links_of_a_chain_hold_in_phases_of_their_own():
    chain = {
        "chain": ["DisallowedTokensLogitsProcessor"] * 3,
        "0.token_ids": [A],
        "0.where": "answer",
        "1.token_ids": [B],
        "1.where": "thinking",
        "2.token_ids": [C],
    }
    logits = torch.zeros(1, VOCAB_SIZE)
    for output_ids, banned in (([D], {A, C}), ([START], {B, C}), ([START, D, CLOSE], {A, C})):
        found = edited(builtins.ChainLogitProcessor, [D], output_ids, chain, logits)
        assert {*(found[0] == -torch.inf).nonzero()[:, 0].tolist()} == banned


def row_of(name, given, prompt_ids):
    """Make the row of a request, and the request."""
    model = ServedModel(TOKENIZER, VOCAB_SIZE, (EOS,))
    request = FakeRequest(prompt_ids, served=True, tokenizer=TOKENIZER)
    servings = prepare(getattr(builtins, name)(), given, model)
    row = Row(servings, StockHost(request, may_lag=False))
    assert row.accept_tokens()
    return row, request


def read(row, request, token_id):
    request.append(token_id)
    assert row.accept_tokens()


def test_a_rule_foresees_tokens_in_its_phase_only():
    given = {"text": "a hat", "where": "answer"}
    row, request = row_of("ForcedSequenceLogitProcessor", given, [A, START])
    forced = TOKENIZER.encode("a hat").ids

    for token_id, expected in ((B, []), (CLOSE, forced), (forced[0], forced[1:]), (START, [])):
        read(row, request, token_id)
        assert foreseen(row, 9, VOCAB_SIZE) == expected


def test_a_rule_that_cannot_act_in_its_phase_is_not_asked(monkeypatch):
    asked = []
    allowed = builtins.AllowedTokensLogitProcessor
    edit = allowed.edit
    monkeypatch.setattr(allowed, "edit", lambda *given: asked.append(1) or edit(*given))
    given = {"token_ids": [A, B, START, CLOSE], "where": "answer"}
    request = FakeRequest([D], served=True, tokenizer=TOKENIZER)
    custom_params = request.custom_params({})
    model = ServedModel(TOKENIZER, VOCAB_SIZE, (EOS,))
    host = StockHost(request, may_lag=False)
    row = attach_row(custom_params, prepare(allowed(), given, model), host)
    batch, every = Batch(), [custom_params]
    for token_id in [*[A] * 20, START, *[C] * 20, CLOSE, *[B] * 20]:
        logits = torch.zeros(1, VOCAB_SIZE)
        asleep = batch.step_asleep(logits, every, 1, newest=lambda: ())
        if not asleep:
            batch.step(logits, [row], every)
        is_thinking = row.turns[0].request.phases.is_open
        assert (logits[0, D] == 0) == is_thinking
        request.append(token_id)

    assert len(asked) == 1


def test_the_forks_of_a_row_read_the_tokens_of_their_own_requests():
    given = {"ngram_size": 1, "window_size": 9, "scope": "output", "where": "answer"}
    row, request = row_of("DeepseekOCRNoRepeatNGramLogitProcessor", given, [D])
    read(row, request, A)
    forks = {}
    for token_id in (B, C):
        other = FakeRequest([D], [A], served=True, tokenizer=TOKENIZER)
        forks[token_id] = row.fork(StockHost(other, may_lag=False), other.output_ids), other
    for token_id, (fork, other) in forks.items():
        read(fork, other, token_id)
    for token_id, (fork, _) in forks.items():
        edits = fork.ask(VOCAB_SIZE, 1)
        assert {one for ids in edits.banned for one in ids} == {A, token_id}


# What it asks of the server, and of the served model


def served(name, params, model):
    processor = getattr(builtins, name)()
    return prepare(processor, params, model)[0]


def test_a_processor_in_a_phase_is_what_it_is_everywhere_but_for_the_history_that_it_needs():
    model = ServedModel(TOKENIZER, VOCAB_SIZE, (EOS,), watermark=GREEN_SCHEME)
    for name, params in CASES.items():
        everywhere = served(name, params, model)
        phased = served(name, {**params, "where": "answer"}, model)
        assert type(phased.processor) is type(everywhere.processor)
        assert phased.in_row == everywhere.flags._replace(
            needs=History.TOKENS, tolerates_lag=False, reads_prompt=True
        )


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (None, "the server has no tokenizer"),
        (byte_level(CORPUS, 300), "expected one known pair of thinking delimiters"),
    ],
)
def test_a_phase_without_known_delimiters_is_refused_by_name(tokenizer, message):
    model = ServedModel(tokenizer, VOCAB_SIZE, (EOS,))
    params = {"min_tokens": 3, "where": "answer"}
    chain = {"chain": ["MinLengthLogitProcessor"], "0.min_tokens": 3, "0.where": "answer"}
    for name, given, where in (
        ("MinLengthLogitProcessor", params, "where"),
        ("ChainLogitProcessor", chain, "0.where"),
    ):
        with pytest.raises(InvalidParameter, match=message) as caught:
            served(name, given, model)
        assert caught.value.parameter == where
    assert served("MinLengthLogitProcessor", {"min_tokens": 3}, model)


def test_the_delimiters_of_the_served_reasoning_parser_count_whichever_tokens_spell_them():
    form = ReasoningFormat("<think>", "</think>", can_begin_inside=True)
    model = ServedModel(TOKENIZER, VOCAB_SIZE, (EOS,), form)
    params = builtins.MinLengthLogitProcessor.parse_params({"min_tokens": 3, "where": "answer"})
    phase = params.find_phase("MinLengthLogitProcessor", model)

    assert not phase.is_thinking
    assert phase.finder.reads_text
    assert (phase.begins_inside, phase.begin_inside().begins_inside) == (False, True)
