"""The guard checks payload, parameters and the server's abilities, and answers once."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from sglang_lp import wire
from sglang_lp.adapters import AdaptedProcessor
from sglang_lp.builtins import (
    ChainLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import save
from sglang_lp.catalogue.opened import Renewal
from sglang_lp.errors import (
    InvalidParameter,
    PayloadRefused,
    PolicyError,
    ProcessorFault,
    RequestError,
    Unsupported,
)
from sglang_lp.params.parsed import forget
from sglang_lp.policy.sections import Ceiling, Chosen, Profile
from sglang_lp.policy.stock import Stock
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.server.gate import guard as guard_module
from sglang_lp.server.gate import server as server_module
from sglang_lp.server.gate.algorithms import Speculation
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.trust import Gate, Limits, Policy, Verifier
from support.models.vocabularies import one_token_a_byte
from support.watermarks import GREEN, write_key

BAN = DisallowedTokensLogitsProcessor.to_str()
BAN_NAME = "sglang_lp.builtins:DisallowedTokensLogitsProcessor"
FORCE = ForcedSequenceLogitProcessor.to_str()
CHAIN = ChainLogitProcessor.to_str()
PARAMS = {"token_ids": [5]}
BAN_CHAIN = {"chain": ["DisallowedTokensLogitsProcessor"], "0.token_ids": [5]}
FORCE_CHAIN = {"chain": ["ForcedSequenceLogitProcessor"], "0.token_ids": [5]}


class Foreign:
    """A class with only SGLang's interface."""


@pytest.fixture
def foreign(guard, monkeypatch):
    allowed = SimpleNamespace(name="m:Foreign", processor=Foreign, payload="p")
    monkeypatch.setattr(guard.verifier, "lookup", lambda _payload: allowed)
    return allowed


def test_before_it_knows_the_server_it_checks_what_it_can(guard):
    assert (
        guard.gate,
        guard.server.speculation,
        guard.server.tokenizer,
        guard.server.vocab_size,
    ) == (
        Gate.ADMISSION,
        None,
        None,
        None,
    )
    admitted = guard.admit(Intake(BAN, {"token_ids": [1 << 30]}))

    assert type(admitted.servings[0].processor) is DisallowedTokensLogitsProcessor
    assert admitted.servings[0].params.token_ids == (1 << 30,)


def test_the_answer_is_what_the_operator_allowed_and_the_typed_parameters(guard):
    guard.server.vocab_size = 6
    admitted = guard.admit(Intake("DisallowedTokensLogitsProcessor", PARAMS))

    assert admitted.payload == BAN
    assert type(admitted.servings[0].processor) is DisallowedTokensLogitsProcessor
    assert admitted.servings[0].params == DisallowedTokensLogitsProcessor.Params(token_ids=(5,))


def test_a_class_without_a_schema_gets_whatever_is_flat(guard, foreign):
    admitted = guard.admit(Intake("p", {"any": [1, "two"]}))

    assert (admitted.payload, admitted.servings[0].processor.name) == ("p", "Foreign")
    assert admitted.servings[0].params.values == {"any": [1, "two"]}


class Warm(DisallowedTokensLogitsProcessor):
    """Records the vocabularies that it warms."""

    warmed: ClassVar[list[object]] = []

    @classmethod
    def warm(cls, vocabulary):
        cls.warmed.append(vocabulary)


def process(tokenizer, **arguments):
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=9, hf_eos_token_id={2}),
        server_args=SimpleNamespace(speculative_algorithm=None, **arguments),
        tokenizer=tokenizer,
        max_req_input_len=77,
    )


def test_a_guard_learns_what_the_server_is(guard, monkeypatch):
    vocabulary = SimpleNamespace(prepare=lambda: prepared.append(1))
    prepared, asked, fitted = [], [], []

    def found(*given, **more):
        asked.append((*given, more))
        return "a format"

    of_tokenizers = {"first": vocabulary, "second": vocabulary}
    monkeypatch.setattr(server_module, "reasoning_format", found)
    monkeypatch.setattr(guard_module, "vocabulary_of", of_tokenizers.__getitem__)
    monkeypatch.setattr(Warm, "warmed", [])
    allowed = [SimpleNamespace(processor=kind) for kind in (Foreign, Warm)]
    guard.verifier = SimpleNamespace(allowed=allowed)
    guard.rules = SimpleNamespace(is_empty=False, fit=fitted.append, decide=lambda *_given: None)

    guard.learn(Gate.SCHEDULER, process(None))
    assert (guard.server.apart, guard.server.longest, guard.server.vocab_size) == (False, 77, 9)
    assert (guard.server.eos_token_ids, guard.server.reasoning, asked) == ({2}, None, [])
    strict = {"reasoning_parser": "qwen3", "enable_strict_thinking": True}
    for tokenizer, more in (
        ("first", strict),
        ("first", strict),
        ("second", {"disaggregation_mode": "prefill"}),
    ):
        guard.learn(Gate.ADMISSION, process(tokenizer, **more))

    assert guard.server.apart
    assert guard.server.reasoning == "a format"
    assert asked == [
        ("qwen3", "first", {"strict": True}),
        (None, "second", {"strict": False}),
    ]
    assert Warm.warmed == [vocabulary] * 2
    assert len(prepared) == 2
    # Once for each model that it comes to know.
    assert len(fitted) == 3

    guard.learn(Gate.ADMISSION, process("second", disaggregation_mode="null"))
    assert not guard.server.apart


def test_a_chain_runs_nothing_that_is_not_allowed_by_itself():
    alone = Guard(Policy(builtins=False, allow=("sglang_lp.builtins:ChainLogitProcessor",)))

    with pytest.raises(RequestError, match="got 'DisallowedTokensLogitsProcessor'"):
        alone.admit(Intake(CHAIN, BAN_CHAIN))


def test_the_parameters_fit_the_served_tokenizer_and_vocabulary(guard):
    fitted = []

    class Fits(DisallowedTokensLogitsProcessor):
        @classmethod
        def fit_params(cls, params, served):
            fitted.append((params, served))
            return params

    guard.server.tokenizer, guard.server.vocab_size, guard.server.eos_token_ids = object(), 6, {2}
    guard.verifier = SimpleNamespace(
        lookup=lambda _payload: SimpleNamespace(name="m:Fits", processor=Fits, payload="p")
    )
    admitted = guard.admit(Intake("p", PARAMS))

    served = ServedModel(guard.server.tokenizer, 6, (2,))
    assert fitted == [(admitted.servings[0].params, served)]
    assert admitted.servings[0].params == Fits.Params(token_ids=(5,))


@pytest.mark.parametrize(
    ("payload", "params", "reason"),
    [
        (wire.payload_for("os", "abort"), PARAMS, "not_allowed"),
        (BAN, {"token_ids": [6]}, "invalid_parameter"),
        (BAN, [5], "invalid_parameter"),
        (ThinkingBudgetLogitProcessor.to_str(), {"thinking_budget": 1}, "invalid_parameter"),
    ],
)
@pytest.mark.parametrize("gate", Gate)
def test_every_refusal_is_in_the_audit_trail_and_the_metrics_of_its_gate(
    guard, gate, payload, params, *, reason, monkeypatch
):
    counts = []
    metrics = SimpleNamespace(refuse=lambda *given: counts.append(given))
    monkeypatch.setattr(guard_module, "writing", lambda: metrics)
    guard.gate, guard.server.vocab_size = gate, 6
    with pytest.raises(RequestError) as refused:
        guard.admit(Intake(payload, params))

    assert guard.audit.counts == {(gate.value, reason): 1}
    assert counts == [(gate.value, reason, guard.audit.processor_of(refused.value) or "")]
    assert bool(counts[0][2]) == (reason == "invalid_parameter")


def test_the_log_has_as_many_lines_as_the_policy_says(caplog):
    guard = Guard(Policy(limits=Limits(logged_refusals_per_minute=2)))
    with caplog.at_level("WARNING", logger="sglang_lp.audit"):
        for _ in range(5):
            with pytest.raises(PayloadRefused):
                guard.admit(Intake("no payload", None))

    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("algorithm", "payload", "params", "why"),
    [
        ("EAGLE", FORCE, PARAMS, None),
        ("DSPARK", BAN, PARAMS, None),
        ("DSPARK", CHAIN, BAN_CHAIN, None),
        ("DSPARK", FORCE, PARAMS, None),
        ("DFLASH", CHAIN, FORCE_CHAIN, None),
        ("UNO", BAN, PARAMS, "SGLang itself refuses"),
        ("UNO", CHAIN, FORCE_CHAIN, "SGLang itself refuses"),
    ],
)
def test_a_server_that_speculates_takes_what_is_exact_there(guard, algorithm, payload, params, why):
    guard.server.speculation = Speculation(algorithm)
    if why is None:
        guard.admit(Intake(payload, params))
        return
    with pytest.raises(Unsupported, match=why):
        guard.admit(Intake(payload, params))

    assert guard.audit.counts == {("admission", "unsupported"): 1}


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        ("DSPARK", "m:Foreign: .* computes on whole rows"),
        ("UNO", "m:Foreign: SGLang itself refuses"),
        ("NGRAM", "m:Foreign: .* computes on whole rows"),
    ],
)
def test_a_class_without_a_schema_may_need_the_whole_history(guard, foreign, algorithm, why):
    guard.server.speculation = Speculation(algorithm)
    with pytest.raises(Unsupported, match=why):
        guard.admit(Intake("p", None))


def test_the_fingerprint_is_that_of_the_policy():
    policy = Policy.default()
    guard = Guard(policy)

    elsewhere = msgspec.structs.replace(policy, source="another place")
    assert Guard(elsewhere).fingerprint == guard.fingerprint
    few = Limits(logged_refusals_per_minute=7)
    for other in (Policy(builtins=False), Policy(stock="deny"), Policy(limits=few)):
        assert Guard(other).fingerprint != guard.fingerprint
    assert len(guard.fingerprint) == 64


# SGLang's own code checks nothing: what is out of range there ends a server with a GPU.
@pytest.mark.parametrize(
    ("name", "params", "why"),
    [
        ("DisallowedTokensLogitsProcessor", {"token_ids": [5]}, None),
        ("DisallowedTokensLogitsProcessor", {"token_ids": [999_999_999]}, "0 to 99, got 999999999"),
        ("DisallowedTokensLogitsProcessor", {"token_ids": [-1]}, "token_ids"),
        ("DisallowedTokensLogitsProcessor", {"token_ids": "5"}, "expected a list"),
        ("DisallowedTokensLogitsProcessor", None, "token_ids"),
        ("DeepseekOCRNoRepeatNGramLogitProcessor", {"ngram_size": 2, "window_size": 9}, None),
        ("DeepseekOCRNoRepeatNGramLogitProcessor", {"ngram_size": 0, "window_size": 9}, "ngram_si"),
        ("Qwen3ThinkingBudgetLogitProcessor", {"thinking_budget": 5}, "another model"),
    ],
)
def test_parameters_of_sglangs_own_classes_are_checked_as_those_of_the_builtins(name, params, why):
    pytest.importorskip("sglang")
    guard = Guard(Policy(stock=Stock.ALLOW))
    guard.server.vocab_size = 100
    payload = wire.payload_for("sglang.srt.sampling.custom_logit_processor", name)

    if why is None:
        admitted = guard.admit(Intake(payload, params))
        assert isinstance(admitted.servings[0].processor, AdaptedProcessor)
        assert admitted.servings[0].params.values == params
    else:
        with pytest.raises(InvalidParameter, match=why):
            guard.admit(Intake(payload, params))


def counted(guard, monkeypatch):
    """Return a list that collects the requests to the rules."""
    asked, decide = [], guard.rules.decide
    monkeypatch.setattr(
        guard.rules, "decide", lambda one, served: asked.append(one) or decide(one, served)
    )
    return asked


def test_copies_of_a_request_are_decided_on_once(guard, monkeypatch):
    asked = counted(guard, monkeypatch)
    copies = [
        guard.admit(Intake(BAN, {**PARAMS, "__req__": object()}, limit=n)) for n in range(3, 6)
    ]

    assert len(asked) == 1
    assert len({id(one.servings[0].params) for one in copies}) == 1
    assert len({id(one.servings[0].processor) for one in copies}) == 3, (
        "a class may keep something on itself"
    )


@pytest.mark.parametrize(
    ("payload", "params"),
    [
        (FORCE, {"token_ids": [5]}),
        (BAN, {"token_ids": [6]}),
        (BAN, {"token_ids": [5], "__sglang_lp_effort": "high"}),
    ],
)
def test_a_request_that_differs_is_decided_on_anew(guard, monkeypatch, payload, params):
    asked = counted(guard, monkeypatch)
    guard.admit(Intake(BAN, PARAMS))
    guard.admit(Intake(payload, params))

    assert len(asked) == 2


@pytest.mark.parametrize(
    ("params", "other", "decisions"),
    [
        (PARAMS, {**PARAMS, "raw_logprobs": False}, 1),
        ({**PARAMS, "raw_logprobs": False}, {"token_ids": [6], "raw_logprobs": False}, 2),
    ],
)
def test_requests_are_copies_if_they_agree_in_what_their_processors_read(
    guard, monkeypatch, params, other, decisions
):
    asked = counted(guard, monkeypatch)
    admitted = [guard.admit(Intake(BAN, one)) for one in (params, other)]

    assert len(asked) == decisions
    assert [[*one.servings[0].params.token_ids] for one in admitted] == [
        params["token_ids"],
        other["token_ids"],
    ]


def test_parameters_that_cannot_be_packed_are_equal_to_no_others():
    one, other = (Intake(BAN, {"token_ids": [number]}) for number in (2**70, 2**71))

    assert one != other


def test_what_cannot_be_packed_is_no_copy_of_anything(guard, monkeypatch):
    asked = counted(guard, monkeypatch)
    for _ in range(2):
        with pytest.raises(InvalidParameter):
            guard.admit(Intake(BAN, {"token_ids": [2**70]}))

    assert len(asked) == 2


@pytest.mark.parametrize("reasoning", [{"reasoning": True}, {}])
def test_the_rules_are_told_whether_an_answer_may_begin_with_reasoning(
    guard, monkeypatch, reasoning
):
    decide, asked = guard.rules.decide, []
    monkeypatch.setattr(
        guard.rules, "decide", lambda *given: asked.append(given[0].reasoning) or decide(*given)
    )
    guard.admit(Intake(BAN, PARAMS, **reasoning))

    assert asked == [bool(reasoning)]


def test_what_says_nothing_else_is_sampled(guard):
    guard.server.speculation = Speculation("EAGLE", lossy="--speculative-accept-threshold-acc 0.5")

    guard.admit(Intake(BAN, PARAMS, sampled=False))
    with pytest.raises(Unsupported, match="threshold-acc"):
        guard.admit(Intake(BAN, PARAMS))


def test_what_the_operator_decided_is_named_so_where_it_cannot_run():
    guard = Guard(
        Policy(always=(Chosen(processor="DisallowedTokensLogitsProcessor", params=PARAMS),))
    )
    guard.learn(Gate.SCHEDULER, process(None))
    guard.server.diffusion = "LLaDA"
    with pytest.raises(Unsupported, match="expected none, got what the operator decided: this"):
        guard.admit(Intake(None, None))


class Unforked(LogitProcessor):
    """Counts its tokens in an object that cannot be copied."""

    can_fork = False

    def edit(self, request, edits):
        pass


@pytest.mark.parametrize(
    ("decisions", "algorithm", "starts"),
    [
        ({"always": (Chosen(processor=f"{__name__}:Unforked"),)}, "EAGLE", False),
        ({"defaults": Chosen(processor=f"{__name__}:Unforked")}, "EAGLE", False),
        ({"always": (Chosen(processor=f"{__name__}:Unforked"),)}, None, True),
        ({"always": (Chosen(processor=BAN_NAME, params=PARAMS),)}, "EAGLE", True),
        ({"always": (Chosen(processor=BAN_NAME, params=PARAMS),)}, "UNO", False),
        # Only requests that name it would be refused.
        (
            {"profiles": {"a": Profile(processors=(Chosen(processor=f"{__name__}:Unforked"),))}},
            "EAGLE",
            True,
        ),
    ],
    ids=["always", "default", "no drafts", "a ban", "never exact", "a profile"],
)
def test_a_server_whose_own_processors_cannot_follow_drafts_does_not_start(
    decisions, algorithm, starts
):
    guard = Guard(Policy(**decisions))
    served = process(None)
    served.server_args.speculative_algorithm = algorithm
    served.server_args.speculative_accept_threshold_acc = 0.5  # concerns sampled requests only
    if starts:
        guard.learn(Gate.SCHEDULER, served)
        return
    with pytest.raises(PolicyError) as refused:
        guard.learn(Gate.SCHEDULER, served)
    before, _, after = str(refused.value).partition(", got ")
    assert before == (
        "policy in code: expected processors of [defaults] and [[always]] that are exact with this "
        f"server's speculative decoding ({algorithm})"
    )
    assert after.startswith(("Unforked: its state", "DisallowedTokensLogitsProcessor: SGLang"))
    assert after.endswith("; leave it out, or start the server without --speculative-algorithm")


def test_a_field_that_asks_for_a_processor_is_named_so_where_none_can_run(guard):
    guard.server.tokenizer, guard.server.vocab_size = one_token_a_byte("<think>", "</think>"), 400
    guard.server.reasoning = ReasoningFormat("<think>", "</think>")
    guard.server.diffusion = "LLaDA"
    with pytest.raises(
        Unsupported, match="expected none, got a field that asks for a processor: this"
    ):
        guard.admit(Intake(None, {"thinking_budget": 3}))


@pytest.mark.parametrize("payload", [BAN, None, "support"], ids=str)
def test_a_fault_before_a_request_began_names_the_class_that_failed(payload, monkeypatch):
    chosen = Chosen(processor="DisallowedTokensLogitsProcessor", params=PARAMS)
    profile = Profile(processors=(chosen,), may_set=("token_ids",))
    guard = Guard(Policy(defaults=chosen, profiles={"support": profile}))

    def fail(*_):
        raise ValueError

    monkeypatch.setattr(DisallowedTokensLogitsProcessor, "serving", fail)
    with pytest.raises(ProcessorFault) as fault:
        guard.admit(Intake(payload, PARAMS))
    assert fault.value.processor == "DisallowedTokensLogitsProcessor"


def test_true_is_no_copy_of_one(guard):
    guard.admit(Intake(BAN, {"token_ids": [1]}))
    with pytest.raises(InvalidParameter):
        guard.admit(Intake(BAN, {"token_ids": [True]}))


def test_for_another_model_a_copy_is_decided_on_anew(guard):
    guard.server.vocab_size = 8
    guard.admit(Intake(BAN, PARAMS))
    guard.server.vocab_size = 5
    with pytest.raises(InvalidParameter, match="0 to 4"):
        guard.admit(Intake(BAN, PARAMS))


def test_requests_that_differ_in_their_limit_are_decided_on_once_and_have_their_own_room(
    monkeypatch,
):
    guard = Guard(Policy(effort={"answer_room": 9}))
    asked = counted(guard, monkeypatch)
    params = {"thinking_budget": 9, "thinking_start_token_id": 1, "thinking_end_token_id": 2}
    payload = ThinkingBudgetLogitProcessor.to_str()
    admitted = [guard.admit(Intake(payload, params, limit=limit)) for limit in (50, 50, 60)]

    assert len(asked) == 1
    assert [one.servings[0].params.close_by for one in admitted] == [40, 40, 50]


def test_resumed_tokens_count_for_the_room_of_the_answer_in_a_chain_as_well():
    ids = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
    guard = Guard(
        Policy(
            defaults=Chosen(processor="ThinkingBudgetLogitProcessor", params=ids),
            always=(Chosen(processor="DisallowedTokensLogitsProcessor", params=PARAMS),),
            effort={"answer_room": 9},
        )
    )
    guard.rules.fit(ServedModel(None, 50))

    params = {"thinking_budget": 9, "resumed_tokens": 4}
    intake = Intake(None, params, limit=50, prompt_tokens=6)
    admitted = guard.admit(intake)

    (_, budget, *_), _ = admitted.servings
    assert admitted.beside.resumed == 4
    assert budget.close_by == 50 + 4 - 9 - 1


def test_copies_of_a_class_without_a_schema_share_nothing_that_it_may_change(foreign, monkeypatch):
    guard = Guard(Policy(ceilings={"dry_multiplier": Ceiling(at_most=1)}))
    monkeypatch.setattr(guard.verifier, "lookup", lambda _payload: foreign)
    asked = counted(guard, monkeypatch)
    one, other = (guard.admit(Intake("p", {"any": [1]})).custom_params for _ in range(2))

    assert len(asked) == 1
    assert one == other == {"any": [1]}
    assert one["any"] is not other["any"]


def test_a_prompt_that_sglang_would_cut_at_its_end_cannot_be_resumed(guard):
    guard.server.longest = 10
    resumed = {**PARAMS, "resumed_tokens": 2}

    assert guard.admit(Intake(BAN, PARAMS, prompt_tokens=12)).beside.resumed == 0
    assert guard.admit(Intake(BAN, resumed, prompt_tokens=9)).beside.resumed == 2
    for tokens in (10, 11):
        with pytest.raises(RequestError) as refusal:
            guard.admit(Intake(BAN, resumed, prompt_tokens=tokens))
        assert str(refusal.value) == (
            "resumed_tokens: expected a prompt of fewer than 10 tokens with the answer so far, got "
            f"{tokens} or more, which this server would cut at the end; leave out tokens at its "
            "beginning"
        )


def test_raw_logprobs_are_refused_where_they_cannot_come(guard):
    asked = {**PARAMS, "raw_logprobs": True}

    assert guard.admit(Intake(BAN, asked, logprobs=True)).beside.raw
    assert not guard.admit(Intake(BAN, {**PARAMS, "raw_logprobs": False})).beside.raw
    with pytest.raises(RequestError, match=r"^raw_logprobs: expected return_logprob as well"):
        guard.admit(Intake(BAN, asked))
    guard.server.stages = 2
    with pytest.raises(Unsupported, match=r"^raw_logprobs: expected none with --pp-size 2, as "):
        guard.admit(Intake(BAN, asked, logprobs=True))
    guard.server.apart = True
    with pytest.raises(Unsupported, match=r"^raw_logprobs: expected none, ") as refusal:
        guard.admit(Intake(BAN, asked, logprobs=True))
    assert str(refusal.value).endswith(
        ", as prefill and decode are on two servers, and SGLang hands no logits of the first "
        "token over; score the answer as a prompt"
    )


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("BadWords", "BadWordsLogitProcessor"),
        ("BadWordLogitProcessor", "BadWordsLogitProcessor"),
        ("suport", "support"),
        ("xyz", None),
        # It runs for every request, and no client may know of it.
        ("AtMos", None),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_that_the_server_allows(name, suggested):
    always = Chosen(
        processor="examples.own_processor:AtMost", params={"token_ids": [1], "at_most": 1}
    )
    brief = Profile(processors=(Chosen(processor="LoopBreakerLogitProcessor"),))
    guard = Guard(Policy(always=(always,), profiles={"support": brief}))

    with pytest.raises(PayloadRefused) as refused:
        guard.admit(Intake(name))

    assert (refused.value.reason, refused.value.size) == ("unknown_name", len(name))
    hint = f"; did you mean '{suggested}'?" if suggested else "; correct the name, or ask the"
    assert hint in str(refused.value)


def test_a_catalogue_for_another_model_keeps_the_server_from_starting(tmp_path):
    save(build(np.array([[1, 9]], np.int32)), tmp_path / "items.cat")
    (tmp_path / "policy.toml").write_text('[catalogues.items]\nfile = "items.cat"\n')
    guard = Guard(Policy.from_toml(tmp_path / "policy.toml"))
    options = SimpleNamespace(speculative_algorithm=None)
    model = SimpleNamespace(vocab_size=9, hf_eos_token_id=None)

    with pytest.raises(PolicyError, match=r"policy.toml: catalogues.items: .*0 to 8, got 9"):
        guard.learn(Gate.SCHEDULER, SimpleNamespace(server_args=options, model_config=model))


def test_a_catalogue_with_an_end_token_inside_of_an_item_keeps_the_server_from_starting(tmp_path):
    save(build(np.array([[1, 9]], np.int32)), tmp_path / "items.cat")
    (tmp_path / "policy.toml").write_text('[catalogues.items]\nfile = "items.cat"\n')
    guard = Guard(Policy.from_toml(tmp_path / "policy.toml"))
    options = SimpleNamespace(speculative_algorithm=None)
    model = SimpleNamespace(vocab_size=10, hf_eos_token_id={1})

    with pytest.raises(PolicyError, match=r"policy.toml: catalogues.items: .*got 1 inside of"):
        guard.learn(Gate.SCHEDULER, SimpleNamespace(server_args=options, model_config=model))


@pytest.mark.parametrize(("vocab_size", "works"), [(99, False), (100, True)])
def test_a_watermark_key_that_marks_nothing_keeps_the_server_from_starting(
    tmp_path, vocab_size, works
):
    write_key(tmp_path, "kgw", {**GREEN, "greenlist_ratio": 0.01})
    (tmp_path / "policy.toml").write_text('watermark = "watermark.toml"\n')
    guard = Guard(Policy.from_toml(tmp_path / "policy.toml"))
    options = SimpleNamespace(speculative_algorithm=None)
    model = SimpleNamespace(vocab_size=vocab_size, hf_eos_token_id=None)
    served = SimpleNamespace(server_args=options, model_config=model)

    with (
        nullcontext()
        if works
        else pytest.raises(PolicyError, match=r"policy.toml: watermark: .*greenlist_ratio")
    ):
        guard.learn(Gate.SCHEDULER, served)


@pytest.mark.parametrize(
    ("ranks", "follows"), [({}, True), ({"tp_size": 2}, False), ({"pp_size": 2}, False)]
)
def test_ranks_that_have_to_agree_keep_the_version_of_a_catalogue(
    ranks, follows, tmp_path, monkeypatch
):
    save(build(np.array([[1, 2]], np.int32)), tmp_path / "items.cat")
    (tmp_path / "policy.toml").write_text('[catalogues.items]\nfile = "items.cat"\n')
    guard, followed = Guard(Policy.from_toml(tmp_path / "policy.toml")), []
    monkeypatch.setattr(guard_module, "watch", lambda *given: followed.append(given))
    for _ in range(2):  # one thread, however often a process is read
        guard.learn(Gate.SCHEDULER, process(None, **ranks))

    given = (guard.server.catalogues, guard._renewed, "scheduler")
    assert followed == [given] * follows


@pytest.mark.parametrize("writes_metrics", [True, False])
def test_a_new_version_of_a_catalogue_is_counted_and_requests_are_decided_on_anew(
    writes_metrics, tmp_path, monkeypatch
):
    save(build(np.array([[1, 2]], np.int32)), tmp_path / "items.cat")
    (tmp_path / "policy.toml").write_text('[catalogues.items]\nfile = "items.cat"\n')
    guard = Guard(Policy.from_toml(tmp_path / "policy.toml"))
    watched, renewals = [], []
    monkeypatch.setattr(guard_module, "watch", lambda _, renewed, _process: watched.append(renewed))
    metrics = SimpleNamespace(renew=lambda *given: renewals.append(given))
    monkeypatch.setattr(guard_module, "writing", lambda: metrics if writes_metrics else None)
    guard.learn(Gate.SCHEDULER, process(None))
    asked, renewal = counted(guard, monkeypatch), Renewal("items")

    (renewed,) = watched
    for _ in range(2):
        guard.admit(Intake(BAN, PARAMS))
        renewed(renewal)
    guard.admit(Intake(BAN, PARAMS))

    assert len(asked) == 3
    now = guard.server.catalogues.now["items"]
    assert renewals == [(Gate.SCHEDULER, renewal, now)] * 2 * writes_metrics


LINKS = {"0.token_ids": [5], "1.token_ids": [6]}


@pytest.mark.parametrize(
    "decisions", [{}, {"always": (Chosen(processor=BAN_NAME, params=PARAMS),)}]
)
@pytest.mark.parametrize(
    ("payload", "params", "looked_up"),
    [
        ("DisallowedTokensLogitsProcessor", PARAMS, ["DisallowedTokensLogitsProcessor"]),
        (BAN, PARAMS, [BAN]),
        (f" {BAN}", PARAMS, [f" {BAN}"]),
        (
            "ChainLogitProcessor",
            {"chain": ["DisallowedTokensLogitsProcessor", BAN_NAME], **LINKS},
            ["ChainLogitProcessor", "DisallowedTokensLogitsProcessor", BAN_NAME],
        ),
        ("NoSuchClass", {}, ["NoSuchClass"]),
        (None, {}, []),
    ],
)
def test_each_text_that_names_a_class_is_looked_up_once(
    payload, params, looked_up, decisions, monkeypatch
):
    forget()
    guard = Guard(Policy(**decisions))
    found = []
    lookup = Verifier.lookup

    def counted(self, text):
        found.append(text)
        return lookup(self, text)

    monkeypatch.setattr(Verifier, "lookup", counted)
    with suppress(PayloadRefused):
        guard.admit(Intake(payload, params))
    assert found == looked_up


def test_what_runs_is_what_was_looked_up(monkeypatch):
    class Other(DisallowedTokensLogitsProcessor):
        """Another class, which the next lookup finds."""

    guard = Guard(Policy.default())
    first = guard.verifier.lookup(BAN)
    answers = iter([first, first._replace(processor=Other)])
    monkeypatch.setattr(guard.verifier, "lookup", lambda _payload: next(answers))

    (serving,) = guard.admit(Intake(BAN, PARAMS)).servings
    assert type(serving.processor) is DisallowedTokensLogitsProcessor
