"""Where a rule steps back, the other rules hold: ends stay banned, rooms, totals and budgets hold.

Random models that like to write parts of delimiters are played, and their answers read as text.
The exceptions of the code, each with the test that holds the other rules to it; a new exception
gets its line here and its test:

=========================================== =====================================================
exception                                   test
=========================================== =====================================================
a begun tool start excuses the closing      ``test_with_a_begun_tool_start_...`` and the next
a loop closes a block before its budget     ``test_with_a_begun_tool_start_...`` (``min_count``)
``at_limit`` ``stop`` ends the answer in    ``test_a_block_that_ends_the_answer_...``
its block
a grammar decides where the answer ends     ``test_with_a_grammar_...``
a resumed answer goes on                    ``test_a_resumed_answer_...``
a chain of other rules: bans, forced text   ``test_beside_a_ban_...``
strict thinking leaves one token            ``test_thinking_limits.py``, "Strict thinking"
a stock server lacks the newest token       ``test_thinking_budget.py``, "unseen"
a forced text, phrase or word in progress   ``tests/builtins/test_rules_together.py``
a begun whole word, choice or tool start    ``tests/builtins/test_rules_together.py``
a loop or n-gram that is banned             ``tests/builtins/test_rules_together.py``
a half-written character near a budget      ``test_thinking_characters.py``
whole JSON near the limit, with bans        ``tests/closing/test_row.py``
items that end an answer (``ends_answer``)  ``tests/builtins/catalogue/test_items.py``
``where``: a rule of one phase              ``test_phases.py``
a limit on calls lets a block start         ``test_tool_calls.py``, ``test_tool_call_parser.py``
the operator's rules contradict             ``tests/server/scheduler/test_gate.py``
``resumed_tokens`` and ``[[always]]``       ``tests/server/gate/test_guard.py``
``exclusion_only``, routed forms, beams     refused or unfolded at the gate: ``tests/server/gate``
=========================================== =====================================================
"""

import random
import re
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.host import Host
from sglang_lp.builtins import ChainLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.links import prepare
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.testing import Batch, FakeRequest, decided_as_on_a_gpu
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import one_token_a_byte

THINK, CLOSE, CALL = "<think>", "</think>", "<tool_call>"
ADDED = THINK, CLOSE, CALL, "tool_call>", "<tool", "A<", "_ca", ">B", " <"
TOKENIZER = one_token_a_byte(*ADDED, special=False)
TOKENS = vocabulary_of(TOKENIZER).tokens
START, END = TOKENIZER.token_to_id(THINK), TOKENIZER.token_to_id(CLOSE)
NEW_LINE = TOKENS.index(b"\n")
EOS = len(TOKENS)
VOCAB = EOS + 1
LIKED = [*range(256, EOS), EOS, *(TOKENS.index(bytes([byte])) for byte in b"<tol_ca>A\n")]
FORM = ReasoningFormat(THINK, CLOSE, tool_starts=(CALL,))
SERVED = ServedModel(TOKENIZER, VOCAB, (EOS,), reasoning=FORM)


def random_model(seed):
    """Return a model whose next token is a random function of the last three and the place."""

    def likes(token_ids):
        some = random.Random(hash((seed, *token_ids[-3:], len(token_ids) % 7)))
        row = torch.zeros(VOCAB)
        row[some.sample(LIKED, 6)] = torch.arange(6, 0, -1).float()
        return row

    return likes


def scripted(pieces):
    """Return a model that writes these texts, then ends."""
    script = [EOS if one is None else TOKENIZER.token_to_id(one) for one in pieces]

    def likes(token_ids):
        row = torch.zeros(VOCAB)
        place = len(token_ids) - 1
        row[script[place] if place < len(script) else EOS] = 2
        row[TOKENS.index(b"B")] = 1
        return row

    return likes


def played(params, model, *, steps, resumed=(), gpu=False, grammar=None, chain=None):
    """Return the tokens of a greedy answer up to its end, which may go on after others.

    Args:
        params: The budget's parameters.
        model: From the tokens so far to the logits of the next.
        steps: Most tokens.
        resumed: The first tokens of the answer.
        gpu: Whether the device decides what is asked.
        grammar: The field of a grammar, which holds outside of blocks only.
        chain: Name and parameters of another link.
    """
    kind, custom = ThinkingBudgetLogitProcessor(), params
    if chain:
        name, own = chain
        custom = {"chain": [ThinkingBudgetLogitProcessor.__name__, name]}
        custom |= {f"0.{key}": one for key, one in params.items()}
        custom |= {f"1.{key}": one for key, one in own.items()}
        kind = ChainLogitProcessor()
    servings = prepare(kind, custom, SERVED, steps)
    prompt, output = [START], [*resumed]
    request = FakeRequest([*prompt, *output], tokenizer=TOKENIZER)
    request.sampling_params = SimpleNamespace(**({grammar: "{}"} if grammar else {}))
    host = Host(request)
    host.resumed = len(output)
    row = attach_row(given := request.custom_params({}), servings, host)
    batch = Batch()
    while len(output) < steps:
        logits = model([*prompt, *output])[None].clone()
        if gpu:
            with decided_as_on_a_gpu():
                batch.step(logits, [row], [given])
        else:
            batch.step(logits, [row], [given])
        output.append(int(logits[0].argmax()))
        request.append(output[-1])
        if output[-1] == EOS:
            break
    return output


def texts(output):
    return [b"" if token_id == EOS else TOKENS[token_id] for token_id in output]


class Read:
    """An answer, whose prompt opened a block, as its text says.

    Attributes:
        blocks: For each block that ended, its number of tokens and the delimiter.
        is_open: Whether the last block is open.
        open_tokens: Tokens of the open block.
        total: Tokens of all blocks.
        left: Tokens after the last block.
        content: The text after the last block, without delimiters and blanks.
    """

    def __init__(self, output):
        pieces = texts(output)
        text = b"".join(pieces).decode()
        places = [0]
        for piece in pieces:
            places.append(places[-1] + len(piece))
        self.blocks, self.is_open, self.total = [], True, 0
        since = until = carried = 0
        for found in re.finditer("</?think>|<tool_call>", text):
            if self.is_open and found[0] != THINK:
                inside = [b > since and a < found.start() and b > a for a, b in pairwise(places)]
                self.total += sum(inside)
                self.blocks.append((carried + sum(inside), found[0]))
                carried = self.blocks[-1][0] if found[0] == CALL else 0
                self.is_open, until = False, found.end()
            elif not self.is_open and found[0] == THINK:
                self.is_open, since = True, found.end()
            elif found[0] == CLOSE:
                carried = 0
        inside = sum(b > since and b > a for a, b in pairwise(places)) if self.is_open else 0
        self.open_tokens, self.total = carried + inside, self.total + inside
        self.left = sum(a >= until for a in places[:-1])
        self.content = re.sub("</?think>|<tool_call>|\\s", "", text[until:])


def is_unfinished(params, output, steps):
    """Tell whether an answer used up its tokens, of which some had to be left after its block."""
    closing = 3 if "closing" in params else 1
    room = max(params.get("min_answer_tokens", 0), params.get("answer_room", 0))
    return room and output[-1] != EOS and steps >= room + closing + 1 and room


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "thinking_budget": st.integers(0, 8),
        "total_thinking_tokens": st.integers(0, 12),
        "answer_room": st.integers(0, 8),
        "min_answer_tokens": st.integers(0, 3),
        "eos_token_ids": st.just([EOS]),
        "new_line_token_id": st.just(NEW_LINE),
        "closing": st.just("AAA"),
        "max_pattern_size": st.just(5),
    },
)
SEEDS = st.integers(0, 1 << 30)


@given(seed=SEEDS, params=PARAMS, steps=st.integers(1, 40), gpu=st.booleans())
def test_with_a_begun_tool_start_ends_rooms_and_totals_hold(seed, params, steps, gpu):
    output = played(params, random_model(seed), steps=steps, gpu=gpu)

    read = Read(output)
    closing = 3 if "closing" in params else 1  # a newline
    least = params.get("min_answer_tokens", 0)
    room = max(least, params.get("answer_room", 0))
    if output[-1] == EOS and (least or "eos_token_ids" in params):
        assert not read.is_open
    if output[-1] == EOS and least:
        assert read.content
    if room and output[-1] != EOS and steps >= room + closing + 1:
        assert not read.is_open
        assert read.left >= room
    budget = params.get("thinking_budget", 99)
    for tokens, ended in [*read.blocks, *([(read.open_tokens, "")] if read.is_open else [])]:
        assert tokens <= budget + closing * (ended != CALL)
    # A block that opens after the total is spent is closed with the end only.
    assert read.total <= params.get("total_thinking_tokens", 99) + closing


@pytest.mark.parametrize("params", [{"thinking_budget": 3}, {"answer_room": 4}])
def test_a_begun_tool_start_is_completed_by_the_next_token_or_the_block_is_closed(params):
    def written(*pieces):
        output = played({**params, "new_line_token_id": NEW_LINE}, scripted(pieces), steps=9)
        return b"".join(texts(output)).decode()

    assert written("A", "A", "<", "tool_call>", "A", "A") == "AA<tool_call>AA"
    assert written("A", "A", "<tool", "_ca", *"AA") == "AA<tool\n</think>A"
    assert written("A", "A", "<", "A", "A", "A") == "AA<\n</think>A"
    assert written("A", "A", "<") == "AA<\n</think>"


@given(seed=SEEDS, budget=st.integers(1, 8), steps=st.integers(1, 40), gpu=st.booleans())
def test_a_block_that_ends_the_answer_has_its_budget_and_no_begun_tool_start_more(
    seed, budget, steps, gpu
):
    params = {"thinking_budget": budget, "at_limit": "stop", "eos_token_ids": [EOS]}
    output = played(params, random_model(seed), steps=steps, gpu=gpu)

    # The decode goes on where a server ends the answer: only the first block counts.
    (tokens, _), *_ = [*Read(output).blocks, (Read(output).open_tokens, "")]
    assert tokens <= budget


@given(
    seed=SEEDS,
    params=PARAMS,
    steps=st.integers(1, 40),
    grammar=st.sampled_from(["json_schema", "regex", "ebnf", "structural_tag"]),
)
def test_with_a_grammar_no_block_ends_the_answer_and_rooms_hold(seed, params, steps, grammar):
    output = played(params, random_model(seed), steps=steps, grammar=grammar)

    read = Read(output)
    guarded = params.get("min_answer_tokens") or "eos_token_ids" in params
    if output[-1] == EOS and guarded:
        assert not read.is_open
    if output[-1] == EOS and params.get("min_answer_tokens"):
        assert read.content
    if room := is_unfinished(params, output, steps):
        assert not read.is_open
        assert read.left >= room


@given(seed=SEEDS, params=PARAMS, steps=st.integers(1, 30), data=st.data())
def test_a_resumed_answer_goes_on_as_if_it_had_not_been_cut(seed, params, steps, data):
    whole = played(params, random_model(seed), steps=steps)
    cut = data.draw(st.integers(0, len(whole) - 1))

    assert played(params, random_model(seed), steps=steps, resumed=whole[:cut]) == whole


@given(
    seed=SEEDS,
    params=PARAMS,
    steps=st.integers(1, 30),
    gpu=st.booleans(),
    banned=st.sets(st.sampled_from([*ADDED[2:], "l"]), max_size=4),
)
def test_beside_a_ban_rooms_and_ends_hold_without_a_contradiction(
    *, seed, params, steps, gpu, banned
):
    ids = [TOKENIZER.token_to_id(one) for one in banned] or [TOKENIZER.token_to_id("Z")]
    chain = "DisallowedTokensLogitsProcessor", {"token_ids": ids}
    # A tool start that may be completed and is banned leaves the closing.
    output = played(params, random_model(seed), steps=steps, gpu=gpu, chain=chain)

    read = Read(output)
    assert not {*ids} & {*output}
    if output[-1] == EOS and params.get("min_answer_tokens"):
        assert read.content
    if room := is_unfinished(params, output, steps):
        assert not read.is_open
        assert read.left >= room
