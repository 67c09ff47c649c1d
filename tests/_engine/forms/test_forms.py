"""Forms edit exactly as rows that are asked one by one, whatever happens to their requests."""

import os
import random
import subprocess
import sys
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from sglang_lp import builtins
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.forms.forms import Forms
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.builtins.known_forms import FORMS
from sglang_lp.builtins.thinking.budget_form import _closing_well
from sglang_lp.edits.ids import LONG, lasting
from sglang_lp.errors import RequestError
from sglang_lp.forms.held import Held, HeldForm, HeldQuestion
from sglang_lp.links import prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps
from sglang_lp.server.scheduler.sglang_host import SglangHost
from sglang_lp.testing import decided_as_on_a_gpu
from sglang_lp.text.vocabulary import vocabulary_of
from support.fakes.requests import Req
from support.models.vocabularies import one_token_a_byte
from support.settings import ROOT

VOCAB = 300
STEPS = 60
SEEDS = 12
#: Its first 256 tokens are bytes.
THINK, END = 256, 257
TOKENIZER = one_token_a_byte("<think>", "</think>", *(f"<{i}>" for i in range(258, VOCAB)))


def some(rng, count):
    """Return tokens: few different ones, a loop, or any."""
    kind = rng.randrange(3)
    if kind == 0:
        return [rng.randrange(3, 8) for _ in range(count)]
    if kind == 1:
        part = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 6))]
        return [part[place % len(part)] for place in range(count)]
    return [rng.randrange(VOCAB) for _ in range(count)]


def dry(rng):
    allowed = rng.choice([1, 2, 3, 7])
    return {
        "dry_allowed_length": allowed,
        "dry_base": rng.choice([1.0, 1.3, 1.75]),
        "dry_multiplier": rng.choice([0.8, 3.0]),
        "dry_penalty_last_n": rng.choice([allowed + 1, 9, 40, 300]),
        "dry_sequence_breaker_ids": rng.choice([[], [5], [4, 6, 59, 260]]),
    }


def ngrams(rng):
    size = rng.choice([1, 2, 3, 6])
    return {
        "ngram_size": size,
        "window_size": rng.choice([size, size + 1, 12, 90, 250, 1000]),
        "whitelist_token_ids": rng.choice([[], [5], [3, 4, 258]]),
        "scope": rng.choice(["all", "output"]),
    }


def bad_words(rng):
    words = [
        [rng.randrange(3, 9) for _ in range(rng.randrange(1, 5))]
        for _ in range(rng.randrange(1, 9))
    ]
    return {
        "token_ids": [token_id for word in words for token_id in word],
        "lengths": [*map(len, words)],
    }


def forced_sequence(rng):
    return {
        "token_ids": some(rng, rng.randrange(1, 40)),
        "eos_token_ids": rng.choice([None, [5], [5, 6]]),
    }


def scheduled_bias(rng):
    return {
        "token_ids": rng.sample(range(VOCAB), 3),
        "bias": rng.choice([0.0, -1.0]),
        "final_bias": rng.choice([2.0, 8.0, None]),
        "start": rng.choice([0, 7]),
        "end": rng.choice([8, 20, 1000]),
    }


def gen_length(rng):
    return {
        "bias": rng.choice([0.01, -0.3, 400.0]),
        "power": rng.choice([0, 1, 2, 3, 5]),
        "eos_token_ids": rng.choice([[5], [290], [6, 7]]),
    }


def bans(rng):
    return {"token_ids": rng.sample(range(VOCAB), rng.choice([1, 20]))}


def budget(rng):
    budget = rng.choice([0, 5, 20, 1000])
    soft = rng.choice([None, None, budget // 4])
    fewest = rng.choice([0, 0, budget if soft is None else soft])
    eos = rng.choice([(), (9,), (5, 9)])
    return {
        "thinking_start_token_id": 3,
        **rng.choice([{"thinking_end_token_id": 4}, {"thinking_end_token_ids": [4, 6]}]),
        "thinking_budget": budget,
        "total_thinking_tokens": rng.choice([None, None, 30]),
        "soft_thinking_budget": soft,
        "soft_top_n": rng.choice([1, 5]),
        "min_thinking_tokens": fewest,
        "wait_token_id": rng.choice([None, 7]) if fewest else None,
        "eos_token_ids": eos,
        "min_answer_tokens": rng.choice([0, 20]) if eos else 0,
        "new_line_token_id": rng.choice([None, 8]),
        "closing_token_ids": rng.choice([(), (10, 11)]),
        "max_pattern_size": rng.choice([None, None, 8]),
        "force_reasoning": rng.random() < 0.5,
    }


def chain(rng):
    links = rng.sample(LINKS, rng.randrange(1, 4))
    if rng.random() < 0.4:  # as where an operator bans tokens for every request
        names = "ThinkingBudgetLogitProcessor", "ForcedWordsLogitProcessor"
        links = [LINKS[-1], rng.choice([link for link in LINKS if link[0] in names])]
    return {
        "chain": [name for name, _ in links],
        **{
            f"{place}.{name}": value
            for place, (_, make) in enumerate(links)
            for name, value in make(rng).items()
        },
    }


def loop_breaker(rng):
    size = rng.choice([1, 4, 64])
    return {
        "max_pattern_size": size,
        "min_pattern_size": rng.choice([1, size]),
        "min_count": rng.choice([2, 3]),
        "action": rng.choice(["ban", "ban", "end", "truncate"]),
        "min_new_share": rng.choice([None, None, None, 0.2]),
    }


def forced_words(rng):
    words = [[rng.randrange(3, 30) for _ in range(rng.randrange(1, 5))] for _ in range(3)]
    count = sum(map(len, words))
    return {
        "token_ids": [token_id for word in words for token_id in word],
        "lengths": [*map(len, words)],
        "eos_token_ids": rng.choice([[90], [91, 92]]),
        "within_tokens": rng.choice([None, count, 30]),
    }


def tool_calls(rng):
    return {
        "max_tool_calls": rng.choice([1, 3]),
        "tool_call_starts": rng.choice([["$$$$"], ["$%$%", "))))"]]),
        "tool_call_end": "&&",
        "eos_token_ids": [90],
        "json_lines": rng.random() < 0.3,
    }


PARAMS = {
    "ForcedWordsLogitProcessor": forced_words,
    "ToolCallLimitLogitProcessor": tool_calls,
    "LoopBreakerLogitProcessor": loop_breaker,
    "ChainLogitProcessor": chain,
    "ThinkingBudgetLogitProcessor": budget,
    "BadWordsLogitProcessor": bad_words,
    "ForcedSequenceLogitProcessor": forced_sequence,
    "GenLengthLogitProcessor": gen_length,
    "ScheduledBiasLogitProcessor": scheduled_bias,
    "DRYLogitProcessor": dry,
    "DeepseekOCRNoRepeatNGramLogitProcessor": ngrams,
}


LINKS = [
    *((name, make) for name, make in PARAMS.items() if make is not chain),
    ("DisallowedTokensLogitsProcessor", bans),
]


def test_every_form_is_compared():
    compared = [getattr(builtins, name) for name in PARAMS]
    assert {*FORMS.values()} == {FORMS[kind] for kind in compared if kind in FORMS}


def get(req, token_id):
    """Let a request get a token, unless it has ended."""
    if not req.finished():
        req.append(token_id)
        if len(req.output_ids) == req.sampling_params.max_new_tokens:
            req.finished_reason = "length"


def depths(first_child, next_sibling):
    """Return how many drafted tokens the path to each node of a tree has."""
    found = [0] * len(first_child)
    for node, first in enumerate(first_child):  # children have larger numbers
        child = first
        while child >= 0:
            found[child] = found[node] + 1
            child = next_sibling[child]
    return found


class Side:
    """A server with or without forms: its batch, its pending results and its requests."""

    def __init__(self, forms, *, drafts):
        self.forms = None if forms is None else Forms(forms, fewest=2)
        self.batch = Batch(forms=self.forms)
        self.pending = PendingResults()
        self.queue = deque()
        self.pending.scheduler = SimpleNamespace(
            enable_overlap=True,
            result_queue=self.queue,
            spec_algorithm=SimpleNamespace(is_none=lambda: not drafts),
        )
        self.reqs = []

    def arrive(self, processor, params, *, tokenizer, prompt, resumed, skipped, limit):
        req = Req(None, params, prompt=prompt, tokenizer=tokenizer)
        req.commit()
        served = ServedModel(tokenizer, VOCAB)
        made = prepare(getattr(builtins, processor)(), params, served)
        given = req.sampling_params.custom_params
        given["__req__"] = req
        req.sampling_params.max_new_tokens = limit
        made = [one._replace(skipped=skipped) for one in made]
        host = SglangHost(req, self.pending)
        host.resumed = resumed
        attach_row(given, made, host)
        self.reqs = [*self.reqs, req]

    def rows(self):
        return rows_of([req.sampling_params.custom_params for req in self.reqs])

    def process(self):
        """Append the tokens of the oldest result, as SGLang does a step later."""
        batch, result = self.queue.popleft()
        for req, token_ids in zip(batch.reqs, result.tokens, strict=True):
            for token_id in token_ids:
                if not req.is_retracted:
                    get(req, token_id)

    def step(self, logits, places, masked, drafts):
        self.pending.begin()
        reqs = [self.reqs[place] for place in places]
        for req in reqs:  # the step computes their newest token, which may be pending
            req.commit()
            req.kv.kv_committed_len += len(self.pending.of(req))
        self.pending.begin()
        params, width = [req.sampling_params.custom_params for req in reqs], drafts.width
        rows = [place * width + node for place in masked for node in range(width)]
        given = {} if width == 1 else {"drafts": lambda: drafts, "width": width}
        self.batch.step(logits, rows_of(params), params, rows, **given)
        return 0 if self.forms is None else len(self.forms._members.rows)

    def sample(self, places, tokens, width, *, overlap):
        """Let requests get tokens: with drafts, the accepted ones and one more."""
        padded = [[*token_ids, *[0] * (width - len(token_ids))] for token_ids in tokens]
        result = SimpleNamespace(
            copy_done=None,
            next_token_ids=torch.tensor(padded).flatten(),
            accept_lens=None if width == 1 else torch.tensor([*map(len, tokens)]),
            speculative_output_stride=width,
            tokens=tokens,
        )
        while self.queue:
            self.process()
        reqs = [self.reqs[place] for place in places]
        mode = SimpleNamespace(is_decode=lambda: True)
        self.queue.append((SimpleNamespace(reqs=reqs, forward_mode=mode), result))
        if not overlap:
            self.process()

    def retract(self, place):
        """Drop the pending token of a request, whose next step is a prefill."""
        while self.queue:
            self.reqs[place].is_retracted = True
            self.process()
            self.reqs[place].is_retracted = False
        (row,) = rows_of([self.reqs[place].sampling_params.custom_params])
        row.rewind()

    def extend(self, place, tokens):
        """Let a request get tokens outside of a step, in another object than before."""
        req = self.reqs[place]
        req.output_ids = req.output_ids[:]
        for token_id in tokens:
            get(req, token_id)

    def leave(self, place):
        while self.queue:
            self.process()
        gone = self.reqs[place]
        self.reqs = [req for req in self.reqs if req is not gone]
        (row,) = rows_of([gone.sampling_params.custom_params])
        row.leave_form()
        _, resumed = row.split_prompt(gone.origin_input_ids)
        row.edit_log.finish([*resumed, *gone.output_ids])
        return row.edit_log.report(len(resumed), len(gone.output_ids))


class Game:
    """A batch that is played with forms and without, side by side."""

    def __init__(self, seed, forms, width=1):
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.width = width
        self.sides = Side(forms, drafts=width > 1), Side(None, drafts=width > 1)
        self.overlap = self.rng.random() < 0.7
        #: How many rows ran by forms, all steps together.
        self.formed = 0

    @property
    def reqs(self):
        return self.sides[1].reqs

    def arrive(self, processor=None):
        processor = processor or self.rng.choice([*PARAMS])
        params = self.in_phases(processor, PARAMS[processor](self.rng))
        has_texts = "tool_call_end" in str(params) or "where" in str(params)
        tokenizer = TOKENIZER if has_texts else self.rng.choice([None, TOKENIZER])
        prompt = some(self.rng, self.rng.choice([1, 5, 40, 400]))
        resumed = self.rng.choice([0, 0, 0, len(prompt) // 3, len(prompt) - 1])
        skipped = self.rng.choice([0, resumed])
        limit = self.rng.choice([1, 9, STEPS, STEPS, STEPS, 9 * STEPS])
        for side in self.sides:
            side.arrive(
                processor,
                params,
                tokenizer=tokenizer,
                prompt=prompt,
                resumed=resumed,
                skipped=skipped,
                limit=limit,
            )

    def in_phases(self, processor, params):
        """Let rules hold in a phase of the answer, or not."""
        names = params.get("chain", [processor])
        places = [f"{place}." for place in range(len(names))] if "chain" in params else [""]
        phased = {
            f"{place}where": self.rng.choice(["thinking", "answer"])
            for place, name in zip(places, names, strict=True)
            if "where" in getattr(builtins, name).Params.__struct_fields__
        }
        return {**params, **phased} if self.rng.random() < 0.3 else params

    def leave(self, place):
        one, other = (side.leave(place) for side in self.sides)
        assert one == other

    def disturb(self):
        """Let something happen to the batch, or nothing."""
        happens, place = self.rng.random(), self.rng.randrange(len(self.reqs))
        if happens < 0.05:
            self.arrive()
        elif happens < 0.08 and len(self.reqs) > 1:
            self.leave(place)
        elif happens < 0.12:
            for side in self.sides:
                side.retract(place)
        elif happens < 0.18 and not any(side.queue for side in self.sides):
            more = some(self.rng, 2) if happens < 0.15 else ()  # several tokens at once
            for side in self.sides:
                side.extend(place, more)

    def step(self):
        """Edit the same logits on both sides, and sample from them.

        A request at its limit leaves once its last token is there. In the step before, its row is
        one of the batch, and its sampled token is dropped.
        """
        for place in reversed(range(len(self.reqs))):
            if self.reqs[place].finished():
                self.leave(place)
        while len(self.reqs) < 4:
            self.arrive()
        rng = self.rng
        places, width = [*range(len(self.reqs))], self.width
        if rng.random() < 0.1:  # a prefill of others, or of a part
            places, width = sorted(rng.sample(places, rng.randrange(1, len(places) + 1))), 1
        reqs = [self.reqs[place] for place in places]
        known = [self.known(req) for req in reqs]
        drafts = self.drafts([[*prompt, *tokens] for prompt, tokens in known], width)
        masked = [rng.randrange(len(reqs))] if rng.random() < 0.05 else []
        logits = torch.randn(len(reqs) * width, VOCAB)
        edited = logits.clone()
        self.formed += self.sides[0].step(edited, places, masked, drafts)
        self.sides[1].step(logits, places, masked, drafts)
        counts = [
            row * width + node
            for row, (req, (_, given)) in enumerate(zip(reqs, known, strict=True))
            for node, depth in enumerate(depths(drafts.first_child[row], drafts.next_sibling[row]))
            if len(given) + depth < req.sampling_params.max_new_tokens
        ]
        assert torch.equal(edited[counts].view(torch.int32), logits[counts].view(torch.int32))
        tokens = [
            self.accepted(logits, drafts, row, [*prompt, *given])
            for row, (prompt, given) in enumerate(known)
        ]
        for side in self.sides:
            side.sample(places, tokens, width, overlap=self.overlap)

    def known(self, req):
        """Return the prompt of a request, and its tokens with the pending ones."""
        pending = self.sides[1].pending
        pending.begin()
        return req.origin_input_ids, [*req.output_ids, *pending.of(req)]

    def drafts(self, texts, width):
        """Draft a tree for each request: a chain, or any."""
        rng, ids, links = self.rng, [], ([], [])
        for text in texts:
            is_chain, first, sibling = rng.random() < 0.5, [-1] * width, [-1] * width
            own = [text[-1], *(self.likely(text) for _ in range(width - 1))]
            for node in range(width - 1, 0, -1):
                parent = node - 1 if is_chain else rng.randrange(node)
                sibling[node], first[parent] = first[parent], node
            for node in range(width):  # children of a node are different tokens
                child, taken = first[node], set()
                while child >= 0:
                    while own[child] in taken:
                        own[child] = rng.randrange(VOCAB)
                    taken.add(own[child])
                    child = sibling[child]
            ids.append(own)
            links[0].append(first)
            links[1].append(sibling)
        return Drafts(width, ids, *links)

    def likely(self, text):
        rng = self.rng
        kind = rng.random()
        if kind < 0.05:
            return rng.choice([THINK, END, 4])
        if kind < 0.2:
            return rng.randrange(VOCAB)
        return rng.randrange(3, 8) if kind < 0.6 else text[-rng.randrange(1, min(6, len(text)) + 1)]

    def accepted(self, logits, drafts, row, text):
        """Return the drafted tokens that the edits leave, if they are likely, and one more."""
        tokens, node = [], 0
        while True:
            at = logits[row * drafts.width + node]
            child = drafts.first_child[row][node]
            while child >= 0:
                token_id = drafts.token_ids[row][child]
                if at[token_id] > -torch.inf and self.rng.random() < 0.7:
                    break
                child = drafts.next_sibling[row][child]
            if child < 0:
                break
            tokens.append(token_id)
            node = child
        likely = torch.rand_like(at)
        likely[[THINK, END]] += torch.rand(2) * (self.rng.random() < 0.2)
        likely[3:8] += 0.9 * (self.rng.random() < 0.6)
        likely[text[-self.rng.randrange(1, min(6, len(text)) + 1)]] += self.rng.random()
        likely[at == -torch.inf] = -1.0
        return [*tokens, int(likely.argmax())]


def play(seed, width=1):
    """Play a batch on both sides; return how many rows ran by forms."""
    game = Game(seed, FORMS, width)
    for _ in range(4):
        game.arrive()
    for _ in range(STEPS):
        game.disturb()
        game.step()
    while game.reqs:
        game.leave(0)
    return game.formed


def test_forms_edit_as_rows_that_are_asked_one_by_one(caplog):
    assert sum(map(play, range(SEEDS))) > 100 * SEEDS
    assert not caplog.records  # no form has failed


@pytest.mark.parametrize("width", [2, 5, 8])
def test_forms_edit_every_node_of_drafts_as_rows_that_are_asked_one_by_one(width, caplog):
    assert sum(play(seed, width) for seed in range(SEEDS)) > 50 * SEEDS
    assert not caplog.records


@pytest.mark.parametrize("width", [1, 5])
def test_forms_ask_a_gpu_what_rows_that_are_asked_one_by_one_do(width, caplog):
    with decided_as_on_a_gpu():
        assert sum(play(seed, width) for seed in range(SEEDS)) > 50 * SEEDS
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.timeout(900)  # everything is compiled anew
@pytest.mark.parametrize("variable", ["NUMBA_BOUNDSCHECK", "NUMBA_DISABLE_JIT"])
def test_forms_keep_to_their_arrays_and_are_right_without_a_compiler(variable, tmp_path):
    seeds = f"range({SEEDS}), [1, 5] * {SEEDS}"
    code = f"import runpy; print(sum(map(runpy.run_path({__file__!r})['play'], {seeds})))"
    variables = {variable: "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


class Fails(FORMS[builtins.DRYLogitProcessor]):
    """Fails at its fifth step, after it has fed its rows."""

    steps = 0

    def step(self, group, seen, out):
        super().step(group, seen, out)
        Fails.steps += 1
        if Fails.steps == 5:
            raise RuntimeError("no more")


def test_rows_of_a_form_that_fails_are_asked_one_by_one_from_then_on(caplog):
    game = Game(0, {builtins.DRYLogitProcessor: Fails})
    for _ in range(4):
        game.arrive("DRYLogitProcessor")

    for _ in range(12):
        game.step()

    assert Fails.steps == 5
    assert [record.exc_text.endswith("no more") for record in caplog.records] == [True]


class CannotJoin(FORMS[builtins.DRYLogitProcessor]):
    """Fails for a row with a window of 9."""

    def block(self, request, limit):
        if request.params.dry_penalty_last_n == 9:
            raise RuntimeError("not this one")
        return super().block(request, limit)


def test_a_row_that_cannot_join_is_asked_by_itself_and_the_others_run_by_forms(caplog):
    game = Game(0, {builtins.DRYLogitProcessor: CannotJoin})
    lasting = set()
    while len(lasting) < 2:
        game.arrive("DRYLogitProcessor")
        newest = game.reqs[-1].sampling_params
        if newest.max_new_tokens > STEPS:
            lasting.add(newest.custom_params["dry_penalty_last_n"] == 9)

    for _ in range(9):
        game.step()

    assert game.formed > 0
    assert [record.exc_text.endswith("not this one") for record in caplog.records] == [True]


class Lasting(HeldForm):
    """Holds edits with so many tokens that they are kept as :class:`Ids`."""

    def fits(self, params, vocab_size):
        return True

    def most(self, params):
        return LONG

    def held(self, request):
        ids = lasting([*range(LONG)])
        return Held(100, frozenset((1,)), ids, HeldQuestion(ids, 1, 5))


def test_a_row_that_holds_many_tokens_has_a_block():
    form = Lasting()

    block = form.block(SimpleNamespace(position=0), 100)

    _, bans, asked = block.kept
    assert form.arena.of(bans).tolist() == form.arena.of(asked).tolist() == [*range(LONG)]


def test_a_budget_that_closes_well_has_a_block_where_no_bytes_are_known():
    tokenizer = object()
    with pytest.raises(RequestError):
        vocabulary_of(tokenizer)
    telling = frozenset((4,))
    finder = SimpleNamespace(telling=telling, others=[], closing_signs=[[4]], next_token=[4])
    request = SimpleNamespace(
        params=SimpleNamespace(new_line_token_id=None, soft_top_n=1),
        state=SimpleNamespace(finder=finder, newest=9),
        tokenizer=tokenizer,
        output_ids=[9],
    )

    held = _closing_well(request, 50)

    assert held == Held(50, telling, [], HeldQuestion([4], 1, 4))


def test_a_server_without_numba_says_so_in_one_line_and_asks_every_row(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sglang_lp.builtins.known_forms", None)
    steps = Steps(PendingResults())
    last = SimpleNamespace(is_last_rank=True)

    steps.load_forms(None, SimpleNamespace(pp_group=last))

    (record,) = caplog.records
    assert "row by row" in record.getMessage()
