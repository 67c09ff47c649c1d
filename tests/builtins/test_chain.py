"""Several processors on one request."""

import itertools
import math
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp._engine.history.host import Host
from sglang_lp._engine.history.row import Row
from sglang_lp.adapters import as_processor
from sglang_lp.builtins import ChainLogitProcessor, DisallowedTokensLogitsProcessor
from sglang_lp.errors import InvalidParameter, PayloadRefused, ProcessorFault, RefusalReason
from sglang_lp.links import Link, prepare, serve
from sglang_lp.params import MAX_TOKEN_IDS, Parameters, TokenId
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import Batch, FakeRequest, ProcessorContract, run
from sglang_lp.trust import Policy

VOCAB = 8
tokens = st.integers(0, VOCAB - 1)
BAN = "DisallowedTokensLogitsProcessor"
LENGTH = "MinLengthLogitProcessor"
FORCE = "ForcedSequenceLogitProcessor"


def chained(*links):
    """Write the parameters of a chain: for each link its name and its own parameters."""
    params = {"chain": [name for name, _ in links]}
    for place, (_, own) in enumerate(links):
        params |= {f"{place}.{key}": value for key, value in own.items()}
    return params


def serving_links(links, unnamed=0, *, skipped=()):
    """Serve some links, of which messages do not name the last."""
    named = len(links) - unnamed
    return [
        serve(Link(*link, place=f"{place}.", skipped=skips, is_named=place < named))
        for place, (link, skips) in enumerate(zip(links, skipped or [0] * len(links), strict=True))
    ]


class Witness(LogitProcessor):
    """Write down what it sees, sleep for some tokens, and name the next of some forced ones."""

    class Params(Parameters, frozen=True):
        naps: tuple[int, ...] = (1,)

    saw: ClassVar[list] = []

    def start(self, request):
        self.saw.append(("start", [*request.prompt_ids], [*request.output_ids], request.position))
        return ()

    def advance(self, request, token_ids):
        request.state = (*request.state, *token_ids)

    def edit(self, request, edits):
        prompt_ids, output_ids, position = request.prompt_ids, request.output_ids, request.position
        assert len(output_ids) == position
        assert [*output_ids[-2:]] == [*output_ids][-2:]
        assert [*output_ids[: position // 2]] == [*output_ids][: position // 2]
        self.saw.append(("edit", [*prompt_ids], [*output_ids], [*request.state]))
        naps = request.params.naps
        edits.wake_at(position + naps[position % len(naps)])


class Other(Witness):
    saw: ClassVar[list] = []


@given(
    prompt=st.lists(tokens, min_size=1, max_size=6),
    output=st.lists(tokens, max_size=12),
    cut=st.integers(1, 6),
    naps=st.tuples(*[st.lists(st.integers(1, 4), min_size=1, max_size=3)] * 2),
    drafted=st.booleans(),
)
def test_a_link_that_begins_with_the_request_sees_a_resumed_answer_as_prompt(
    prompt, output, cut, naps, drafted
):
    cut = min(cut, len(prompt))

    def play(kinds, skipped, resumed):
        links = [(kind, kind.Params(naps=tuple(nap))) for kind, nap in kinds]
        joined = serving_links(links, skipped=skipped)
        for kind, _ in kinds:
            kind.saw.clear()
        request = FakeRequest(prompt)
        params = request.custom_params({})
        host = StockHost(params["__req__"], may_lag=False)
        host.resumed = resumed
        attach_row(params, joined, host)
        for position in range(len(output) + 1):
            if drafted and position < len(output):
                nodes = [[0, output[position]]], [[1, -1]], [[-1, -1]]
                Batch().step(
                    torch.zeros(2, VOCAB),
                    rows_of([params]),
                    [params],
                    drafts=lambda nodes=nodes: Drafts(2, *nodes),
                    width=2,
                )
            else:
                Batch().step(torch.zeros(1, VOCAB), rows_of([params]), [params])
            if position < len(output):
                request.append(output[position])
        return [[*kind.saw] for kind, _ in kinds]

    resumes, begins = play([(Witness, naps[0]), (Other, naps[1])], (0, cut), cut)
    assert [resumes] == play([(Witness, naps[0])], (), cut)
    assert [begins] == play([(Other, naps[1])], (), 0)


class TestContract(ProcessorContract):
    processor = ChainLogitProcessor
    valid_params = (
        chained((BAN, {"token_ids": [3]})),
        chained((BAN, {"token_ids": [3]}), (BAN, {"token_ids": [4]})),
        chained(
            (BAN, {"token_ids": [3]}),
            (LENGTH, {"min_tokens": 5, "eos_token_ids": [2]}),
            ("DeepseekOCRNoRepeatNGramLogitProcessor", {"ngram_size": 2, "window_size": 20}),
            ("LoopBreakerLogitProcessor", {"max_pattern_size": 3, "min_count": 2}),
            ("ScheduledBiasLogitProcessor", {"token_ids": [4], "bias": 1.5, "start": 3}),
        ),
    )
    invalid_params = (
        ({}, "chain"),
        ({"chain": []}, "chain"),
        ({"chain": [BAN] * 9}, "chain"),
        ({"chain": [BAN]}, "0.token_ids"),
        ({"chain": [BAN], "0.token_ids": [1000]}, "0.token_ids"),
        ({"chain": [BAN], "token_ids": [3]}, "token_ids"),
        ({"chain": [BAN], "00.token_ids": [3]}, "00.token_ids"),
        ({"chain": [BAN], "0.token_ids": [3], "1.token_ids": [3]}, "1.token_ids"),
        ({"chain": [BAN], "0.token_ids": [3], "0.__req__": 1}, "0.__req__"),
        ({"chain": ["NoSuchProcessor"]}, "NoSuchProcessor"),
        ({"chain": ["ChainLogitProcessor"], "0.chain": [BAN]}, "chain"),
    )


LINKS = {
    BAN: {"token_ids": [3]},
    "AllowedTokensLogitProcessor": {"token_ids": [0, 1, 2, 3, 4]},
    LENGTH: {"min_tokens": 4, "eos_token_ids": [0]},
    "ScheduledBiasLogitProcessor": {"token_ids": [1, 3], "bias": 2, "start": 2, "end": 5},
    "BadWordsLogitProcessor": {"token_ids": [1, 2, 5], "lengths": [2, 1]},
    "DRYLogitProcessor": {"dry_allowed_length": 1},
}


@given(
    names=st.lists(st.sampled_from([*LINKS]), min_size=1, max_size=5, unique=True),
    prompt=st.lists(tokens, max_size=5),
    output=st.lists(tokens, max_size=10),
)
def test_a_chain_does_what_its_links_do_one_after_the_other(names, prompt, output):
    from sglang_lp import builtins

    links = [(getattr(builtins, name)(), LINKS[name]) for name in names]
    request = FakeRequest(prompt)
    own = [request.custom_params(params) for _, params in links]
    together = request.custom_params(chained(*((name, LINKS[name]) for name in names)))

    for position in range(len(output) + 1):
        expected = torch.randn(1, VOCAB, dtype=torch.float64)
        logits = expected.clone()
        for (link, _), custom_params in zip(links, own, strict=True):
            link(expected, [custom_params])
        ChainLogitProcessor()(logits, [together])
        assert torch.allclose(logits, expected)
        if position < len(output):
            request.append(output[position])


def served(*links):
    """Make the row of a request for a chain."""
    return Row(
        prepare(ChainLogitProcessor(), chained(*links), ServedModel(vocab_size=200_000)), Host(None)
    )


def test_a_chain_needs_what_its_most_demanding_link_needs():
    ban = (BAN, {"token_ids": [3]})
    length = (LENGTH, {"min_tokens": 4, "eos_token_ids": [0]})
    words = ("BadWordsLogitProcessor", {"token_ids": [1], "lengths": [1]})

    assert served(ban).needs is History.NONE
    assert served(length, ban).needs is History.POSITION
    assert served(ban, words, length).needs is History.TOKENS


def test_a_chain_tolerates_lag_if_every_link_that_could_lag_does():
    think = (
        "Qwen3ThinkingBudgetLogitProcessor",
        {"thinking_budget": 5},
    )
    words = ("BadWordsLogitProcessor", {"token_ids": [1], "lengths": [1]})

    for links, tolerates in (((think, (BAN, {"token_ids": [3]})), True), ((think, words), False)):
        assert all(turn.flags.tolerates_lag for turn in served(*links).turns) == tolerates


class Every(LogitProcessor):
    """Looks at every ``step``-th token, and notes what it gets."""

    looks: list = []  # noqa: RUF012 - one list for the test that reads it
    fed: list = []  # noqa: RUF012

    class Params(Parameters, frozen=True):
        step: TokenId

    def advance(self, request, token_ids):
        self.fed.append((request.params.step, *token_ids))

    def edit(self, request, edits):
        assert [*request.output_ids] == [7] * request.position
        self.looks.append((request.params.step, request.position))
        edits.wake_at(request.position + request.params.step)


def test_each_link_sleeps_as_long_as_it_says_and_gets_each_token_once():
    Every.looks.clear()
    Every.fed.clear()
    name = f"{Every.__module__}:Every"

    run(
        ChainLogitProcessor,
        chained((name, {"step": 2}), (name, {"step": 5})),
        [1],
        [7] * 11,
        steps=11,
        vocab_size=VOCAB,
    )

    assert sorted(Every.looks) == [(2, i) for i in range(0, 11, 2)] + [(5, i) for i in (0, 5, 10)]
    for step in (2, 5):
        assert sum(len(fed) - 1 for fed in Every.fed if fed[0] == step) == 10


def test_a_conflict_ends_the_request_with_an_error_that_names_the_links():
    params = chained((FORCE, {"token_ids": [3]}), (BAN, {"token_ids": [3]}))
    logits = torch.zeros(1, VOCAB)

    with pytest.raises(ProcessorFault) as caught:
        ChainLogitProcessor()(logits, [FakeRequest([1]).custom_params(params)])

    assert FORCE in str(caught.value)
    assert BAN in str(caught.value)
    assert "token 3 is both forced and banned" in str(caught.value)
    assert not logits.any()


def test_the_order_of_the_links_makes_no_difference():
    links = [(name, LINKS[name]) for name in [*LINKS][:4]]
    before = torch.randn(1, VOCAB)
    results = []
    for order in itertools.permutations(links):
        custom_params = FakeRequest([1], [2, 2, 2]).custom_params(chained(*order))
        results.append(ChainLogitProcessor()(before.clone(), [custom_params]))

    assert all(torch.equal(result, results[0]) for result in results)


class Halve(LogitProcessor):
    """Works on the logits themselves."""

    def edit(self, request, edits):
        request.logits.mul_(0.5)


def test_links_that_work_on_the_logits_share_them():
    name = f"{Halve.__module__}:Halve"
    params = chained((name, {}), (BAN, {"token_ids": [3]}), (name, {}))

    row = ChainLogitProcessor()(torch.full((1, 5), 8.0), [FakeRequest([1]).custom_params(params)])

    assert row[0].tolist() == [2, 2, 2, -torch.inf, 2]


class Peeks(LogitProcessor):
    """Notes the likeliest tokens."""

    seen: list = []  # noqa: RUF012 - one list for the test that reads it

    def edit(self, request, edits):
        self.seen.append(request.top(2))


def test_a_link_that_asks_for_the_likeliest_tokens_copies_nothing():
    Peeks.seen.clear()
    logits = torch.arange(5.0)[None]
    params = chained((f"{Peeks.__module__}:Peeks", {}))

    ChainLogitProcessor()(logits, [FakeRequest([1]).custom_params(params)])

    assert Peeks.seen == [[4, 3]]
    assert logits._version == 0  # as little as written back


class Swaps(LogitProcessor):
    """Makes the likeliest token the least likely."""

    def edit(self, request, edits):
        request.logits.neg_()


def test_a_link_sees_the_likeliest_tokens_as_the_links_before_left_them():
    Peeks.seen.clear()
    params = chained((f"{Swaps.__module__}:Swaps", {}), (f"{Peeks.__module__}:Peeks", {}))

    ChainLogitProcessor()(torch.arange(5.0)[None], [FakeRequest([1]).custom_params(params)])

    assert Peeks.seen == [[0, 1]]


def test_a_link_can_end_the_request():
    pytest.importorskip("sglang")
    request = FakeRequest([1], [5, 5], served=True)
    loop = {"max_pattern_size": 1, "min_count": 2, "action": "end"}
    params = chained(("LoopBreakerLogitProcessor", loop), (BAN, {"token_ids": [3]}))

    ChainLogitProcessor()(torch.zeros(1, VOCAB), [request.custom_params(params)])

    assert request.to_finish.to_json() == {"type": "stop", "matched": "loop: 1 tokens, 2 times"}


class Amount(Parameters):
    by: float


class _Whole(LogitProcessor):
    Params = Amount
    calls: ClassVar[list[int]] = []

    def __call__(self, logits, custom_param_list=None):
        self.calls.append(len(logits))
        return self.work(logits, torch.tensor([[float(row["by"])] for row in custom_param_list]))


class Adds(_Whole):
    """Computes on whole rows."""

    work = staticmethod(torch.Tensor.add)


class Multiplies(_Whole):
    """Computes on whole rows."""

    work = staticmethod(torch.Tensor.mul)


class Halves:
    """A class with only SGLang's interface."""

    def __call__(self, logits, custom_param_list):
        assert all(row["__req__"].output_ids is not None for row in custom_param_list)
        return logits / 2


WHOLE = {
    "add": (Adds, Adds.Params(by=3.0), lambda row: row + 3.0),
    "multiply": (Multiplies, Multiplies.Params(by=-2.0), lambda row: row * -2.0),
    "halve": (as_processor(Halves), as_processor(Halves).parse_params({}), lambda row: row / 2),
    "ban": (DisallowedTokensLogitsProcessor, DisallowedTokensLogitsProcessor.Params((2,)), None),
}


@given(
    st.lists(st.lists(st.sampled_from([*WHOLE]), min_size=1, max_size=5), min_size=1, max_size=4),
    st.data(),
)
def test_links_that_compute_on_whole_rows_come_first_and_in_order(chains, data):
    batch, params = Batch(), []
    for chain in chains:
        params.append(FakeRequest([1], served=True).custom_params({}))
        joined = serving_links(
            [WHOLE[name][:2] for name in chain], data.draw(st.integers(0, len(chain)))
        )
        attach_row(params[-1], joined)
    before = torch.randn(len(chains), VOCAB)
    for _ in range(3):
        after = before.clone()
        batch.step(after, rows_of(params), params)
        for row, was, chain in zip(after, before, chains, strict=True):
            expected = was.clone()
            for name in chain:
                expected = expected if name == "ban" else WHOLE[name][2](expected)
            if "ban" in chain:
                expected[2] = -math.inf
            assert torch.equal(row, expected)
        for one in params:
            one["__req__"].append(3)


def test_a_class_that_several_rows_have_at_different_places_is_called_once():
    batch = Batch()
    chains = [["add"], ["multiply", "add"], ["multiply", "halve", "add"]]
    params = [FakeRequest([1], served=True).custom_params({}) for _ in chains]
    for one, chain in zip(params, chains, strict=True):
        joined = serving_links([WHOLE[name][:2] for name in chain])
        attach_row(one, joined)
    _Whole.calls.clear()
    batch.step(torch.zeros(3, VOCAB), rows_of(params), params)

    assert _Whole.calls == [2, 3]


class ReopensAll(LogitProcessor):
    """Forgets what was masked."""

    def __call__(self, logits, custom_param_list=None):
        return torch.zeros_like(logits)


def test_a_link_that_computes_on_whole_rows_lifts_neither_a_grammars_mask_nor_an_edit():
    params = FakeRequest([1], served=True).custom_params({})
    ban = DisallowedTokensLogitsProcessor, DisallowedTokensLogitsProcessor.Params((2,))
    joined = serving_links([(ReopensAll, Parameters()), ban])
    attach_row(params, joined)
    for _ in range(2):
        logits = torch.ones(1, VOCAB)
        logits[0, :2] = -math.inf
        Batch().step(logits, rows_of([params]), [params], grammar_rows=[0])
        assert logits[0].tolist() == [-math.inf] * 3 + [0.0] * (VOCAB - 3)
        params["__req__"].append(3)


class Likeliest(LogitProcessor):
    """Bans the likeliest token, as the links before it left the logits."""

    def edit(self, request, edits):
        edits.ban(request.top(1))


def test_a_link_that_reads_logits_reads_what_was_computed():
    params = FakeRequest([1], served=True).custom_params({})
    joined = serving_links([(Likeliest, Parameters()), WHOLE["multiply"][:2]])
    attach_row(params, joined)
    logits = torch.arange(float(VOCAB))[None]
    Batch().step(logits, rows_of([params]), [params])

    assert logits[0].tolist() == [-math.inf] + [-2.0 * i for i in range(1, VOCAB)]


@pytest.mark.slow
def test_what_a_server_adds_is_not_named_where_it_fails_on_a_whole_row():
    params = FakeRequest([1], served=True).custom_params({})
    joined = serving_links([WHOLE["add"][:2], (Adds, Parameters())], unnamed=1)
    attach_row(params, joined)
    Batch().step(torch.zeros(1, VOCAB), rows_of([params]), [params])

    message = params["__req__"].to_finish.message
    assert message.startswith("what this server adds to every request failed at token 0")


def test_a_second_link_of_a_class_that_computes_on_whole_rows_is_refused():
    name = f"{Adds.__module__}:Adds"
    with pytest.raises(InvalidParameter, match="at most one Adds"):
        ChainLogitProcessor.parse_params(chained((name, {"by": 1}), (name, {"by": 1})))


def test_an_error_says_which_link_it_means():
    params = chained((BAN, {"token_ids": [3]}), (BAN, {"token_ids": "3"}))

    with pytest.raises(InvalidParameter) as caught:
        ChainLogitProcessor.parse_params(params)

    assert "1.token_ids of DisallowedTokensLogitsProcessor: expected" in str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        ["DRYLogitProcessor"] * 2,
        ["DeepseekOCRNoRepeatNGramLogitProcessor", BAN, "DeepseekOCRNoRepeatNGramLogitProcessor"],
        ["Qwen3ThinkingBudgetLogitProcessor", "DeepSeekR1ThinkingBudgetLogitProcessor"],
    ],
)
def test_of_the_links_that_read_the_whole_prompt_there_is_one_of_a_kind(names):
    needed = {
        "DeepseekOCRNoRepeatNGramLogitProcessor": {"ngram_size": 2, "window_size": 20},
        BAN: {"token_ids": [3]},
        "DRYLogitProcessor": {},
    }
    links = [(name, needed.get(name, {"thinking_budget": 5})) for name in names]

    with pytest.raises(InvalidParameter, match="expected at most one"):
        ChainLogitProcessor.parse_params(chained(*links))
    ChainLogitProcessor.parse_params(chained(*links[:-1]))


def test_the_lists_of_all_links_together_are_as_long_as_one_may_be():
    half = [*range(MAX_TOKEN_IDS // 2)]
    links = (BAN, {"token_ids": half}), (BAN, {"token_ids": half})

    ChainLogitProcessor.parse_params(chained(*links))
    with pytest.raises(InvalidParameter, match="65536 entries in all links together, got 65537"):
        ChainLogitProcessor.parse_params(chained(*links, (BAN, {"token_ids": [3]})))


@pytest.fixture
def guard():
    return lambda **policy: Guard(Policy(**policy))


def test_a_server_takes_only_links_that_its_policy_allows(guard):
    name = f"{Halve.__module__}:Halve"
    params = {"chain": [BAN, name], "0.token_ids": [3]}

    with pytest.raises(PayloadRefused) as refusal:
        guard().admit(Intake("ChainLogitProcessor", params))
    assert str(refusal.value).startswith(
        "chain of ChainLogitProcessor: link 1: expected what a processor's to_str() returns, or "
        f"the name of a class that this server allows, got {name!r}"
    )
    assert refusal.value.reason is RefusalReason.UNKNOWN_NAME
    with pytest.raises(PayloadRefused):
        guard(builtins=False, allow=("sglang_lp.builtins:ChainLogitProcessor",)).admit(
            Intake("sglang_lp.builtins:ChainLogitProcessor", chained((BAN, {"token_ids": [3]})))
        )


class OwnChain(ChainLogitProcessor):
    """An operator's own kind of chain."""

    __module__ = __name__


def test_a_class_derived_from_the_chain_takes_only_links_that_the_policy_allows(guard):
    made = guard()
    kind = OwnChain.limited_to(made.verifier.resolve)
    params = {"chain": [f"{Halve.__module__}:Halve"]}

    OwnChain.parse_params(params)  # without a policy it may be any that is imported
    with pytest.raises(PayloadRefused):
        kind.parse_params(params)
    allowing = guard(allow=(f"{__name__}:OwnChain",))
    with pytest.raises(PayloadRefused):
        allowing.admit(Intake(f"{__name__}:OwnChain", params))


def test_a_class_derived_from_the_chain_cannot_edit_itself():
    with pytest.raises(TypeError, match=r"Edits\.edit: expected none, as a chain only names"):

        class Edits(ChainLogitProcessor):
            def edit(self, request, edits):
                pass


def test_a_server_takes_allowed_links_by_any_of_their_spellings(guard):
    params = {
        "chain": ["json:JSONDecoder", BAN, f"sglang_lp.builtins:{BAN}", BAN],
        **{f"{place}.token_ids": [3] for place in range(4)},
    }
    from sglang_lp.builtins import DisallowedTokensLogitsProcessor

    params["chain"][0] = DisallowedTokensLogitsProcessor.to_str()

    parsed = guard().admit(Intake("ChainLogitProcessor", params))

    assert [type(one.processor) for one in parsed.servings] == [DisallowedTokensLogitsProcessor] * 4


@given(
    schedules=st.lists(
        st.tuples(st.integers(0, 5), st.none() | st.integers(1, 5), st.none() | st.floats(-5, 5)),
        min_size=1,
        max_size=3,
    ),
    min_tokens=st.integers(1, 6),
)
def test_what_holds_in_one_link_goes_on_beside_what_does_not(schedules, min_tokens):
    """A ramp acts at every step, a schedule without one holds, a list of tokens always does."""
    links = [
        (
            "ScheduledBiasLogitProcessor",
            {"token_ids": [1, 2], "bias": bias, "start": start}
            | ({} if length is None else {"end": start + length}),
        )
        for start, length, bias in schedules
    ]
    ramp = {"token_ids": [2, 3], "bias": 0.0, "final_bias": 3.0, "start": 2, "end": 6}
    params = chained(
        (BAN, {"token_ids": [5]}),
        (LENGTH, {"min_tokens": min_tokens, "eos_token_ids": [6]}),
        ("ScheduledBiasLogitProcessor", ramp),
        *links,
    )
    request = FakeRequest([1])
    custom_params = request.custom_params(params)
    processor = ChainLogitProcessor()

    for position in range(10):
        row = processor(torch.zeros(1, VOCAB), [custom_params])[0].tolist()
        expected = [0.0] * VOCAB
        if 2 <= position < 6:
            expected[2] = expected[3] = float(position - 2)
        for start, length, bias in schedules:
            if position >= start and (length is None or position < start + length):
                for token_id in (1, 2):
                    expected[token_id] += -torch.inf if bias is None else bias
        expected[5] = -torch.inf
        if position < min_tokens:
            expected[6] = -torch.inf
        assert row == pytest.approx(expected)
        request.append(0)


class AlwaysBans(LogitProcessor):
    """Says of an edit that is the same at every step that it holds."""

    needs = History.NONE

    def edit(self, request, edits):
        edits.always().ban([3])


def test_what_a_link_without_history_declares_for_good_holds():
    played = run(
        ChainLogitProcessor, {"chain": [f"{__name__}:AlwaysBans"]}, [1], [3, 3, 3], steps=3
    )

    assert played.token_ids == [0, 0, 0]
