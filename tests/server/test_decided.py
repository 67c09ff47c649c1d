"""The operator's decisions in the gates: the same in both, and for requests that bring nothing."""

from copy import deepcopy
from types import SimpleNamespace

import pytest

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.errors import PayloadRefused, PolicyError
from sglang_lp.policy.sections import Ceiling, Chosen, Profile
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.reserved_keys import BUDGET_FIELD, EFFORT
from sglang_lp.server.scheduler.gate import SchedulerGate
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.launch import Launch
from sglang_lp.trust import Gate, Policy
from support.fakes.requests import Req

IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
THINK = "ThinkingBudgetLogitProcessor"
DEFAULT = Chosen(processor=THINK, params={**IDS, "thinking_budget": 30})
BAN = Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [7]})
POLICY = Policy(
    defaults=DEFAULT,
    always=(BAN,),
    ceilings={"thinking_budget": Ceiling(at_most=40)},
    effort={"low": 4, "high": -1, "answer_room": 10},
    profiles={"calm": Profile(processors=(DEFAULT,))},
)


@pytest.fixture
def deciding():
    guard = Guard(POLICY)
    guard.learn(Gate.SCHEDULER, served())
    return guard


def served(**server):
    arguments = {"speculative_algorithm": None, "enable_custom_logit_processor": True, **server}
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=50, is_generation=True, hf_eos_token_id=None),
        server_args=SimpleNamespace(**arguments),
        tokenizer=None,
        preferred_sampling_params=None,
    )


def links_of(guard, req, scheduler=None):
    pending = PendingResults()
    pending.scheduler = scheduler
    SchedulerGate(guard, pending, Arrivals()).admit_req(None, req)
    assert req.ended is None
    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.source.origin_input_ids is req.origin_input_ids
    return {type(turn.processor): turn.request.params for turn in row.turns}, row


def test_what_is_mandatory_holds_for_beams():
    guard = Guard(Policy(always=(BAN,)))
    guard.learn(Gate.SCHEDULER, served())
    links, _ = links_of(guard, Req(sampling={"beam_width": 2}))

    assert [kind.__name__ for kind in links] == ["DisallowedTokensLogitsProcessor"]


@pytest.mark.parametrize(
    ("payload", "params", "budget"),
    [
        (None, None, 30),
        (None, {"thinking_budget": -1}, 40),
        ("calm", {}, 30),
        ("calm", None, 30),
        (None, {EFFORT: "low"}, 4),
        (None, {EFFORT: "high"}, 40),
        (None, {EFFORT: "low", BUDGET_FIELD: 6}, 6),
        (DisallowedTokensLogitsProcessor.to_str(), {"token_ids": [3], EFFORT: "low"}, 4),
    ],
)
def test_the_scheduler_decides_whatever_its_front_end_passed_on(deciding, payload, params, budget):
    req = Req(payload, deepcopy(params))
    links, row = links_of(deciding, req)

    by_name = {kind.__name__: params for kind, params in links.items()}
    assert by_name[THINK].thinking_budget == budget
    assert by_name["DisallowedTokensLogitsProcessor"].token_ids == (7,)
    assert "DisallowedTokensLogitsProcessor" not in row.host.names or len(row.host.names) == 2
    # SGLang resolves the payload in its batch, and gets a processor that runs nothing.
    SchedulerGate(deciding, PendingResults(), Arrivals()).from_str(None, req.custom_logit_processor)


@pytest.mark.parametrize("payload", [None, "calm"])
def test_an_answer_is_resumed_under_whatever_the_operator_decided(deciding, payload):
    req = Req(payload, {"resumed_tokens": 2}, prompt=[1] * 5)
    _, row = links_of(deciding, req)
    assert row.resumed == 2

    too_many = Req(payload, {"resumed_tokens": 6}, prompt=[1] * 5)
    SchedulerGate(deciding, PendingResults(), Arrivals()).admit_req(None, too_many)
    assert too_many.ended.status == 400
    assert too_many.ended.message.startswith("resumed_tokens: expected a whole number from 0 to 5")


def test_room_for_the_answer_is_left_of_what_the_request_can_get(deciding):
    scheduler = SimpleNamespace(max_req_len=31)

    links, _ = links_of(deciding, Req(prompt=[1] * 5), scheduler)
    # 31 tokens in all, 5 of the prompt, 1 that SGLang keeps, 10 for the answer, 1 of the end.
    assert next(iter(links.values())).close_by == 31 - 5 - 1 - 10 - 1


def test_a_request_that_generates_nothing_gets_nothing(deciding):
    req = Req()
    req.sampling_params.max_new_tokens = 0
    SchedulerGate(deciding, PendingResults(), Arrivals()).admit_req(None, req)

    assert (req.custom_logit_processor, req.ended) == (None, None)


def test_beams_and_sampling_masks_do_not_shed_what_is_mandatory(deciding):
    drawn = Chosen(processor="GenLengthLogitProcessor", params={"bias": 1.0, "eos_token_ids": [2]})
    biasing = Guard(Policy(always=(BAN, drawn)))
    biasing.learn(Gate.SCHEDULER, served())
    beams, mask = Req(sampling={"beam_width": 2}), Req()
    mask.return_sampling_mask = True
    for guard, req, why in (
        (deciding, beams, "beam_width: "),
        (
            biasing,
            mask,
            "allow and force tokens, got what this server adds to every request,",
        ),
    ):
        SchedulerGate(guard, PendingResults(), Arrivals()).admit_req(None, req)

        assert req.ended.status == 400
        assert why in req.ended.message
        assert req.custom_logit_processor is None
    mask.ended = None
    SchedulerGate(deciding, PendingResults(), Arrivals()).admit_req(None, mask)
    assert mask.ended is None


def test_the_http_process_passes_on_what_was_asked_and_not_what_was_decided(deciding):
    for payload, params in ((None, None), ("calm", {"a": 1}), ("calm", {})):
        tokenized = SimpleNamespace(
            custom_logit_processor=payload,
            sampling_params=SimpleNamespace(custom_params=params, max_new_tokens=5),
        )
        if params:
            with pytest.raises(ValueError, match="lets a request set no parameter, got 'a'"):
                Admission(deciding).admit(tokenized, served(), SimpleNamespace())
            continue
        Admission(deciding).admit(tokenized, served(), SimpleNamespace())
        assert tokenized.custom_logit_processor == payload
        assert tokenized.sampling_params.custom_params == params


def test_only_what_was_admitted_stands_for_something(guard, deciding):
    for text in ("calm", "decided by nobody"):
        with pytest.raises(PayloadRefused):
            SchedulerGate(guard, PendingResults(), Arrivals()).from_str(None, text)
    SchedulerGate(deciding, PendingResults(), Arrivals()).from_str(None, "calm")


ENABLE = ": its decisions need --enable-custom-logit-processor, which sglang-lp serve adds\n"


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"enable_custom_logit_processor": False}, ENABLE),
        ({"dllm_algorithm": "LLaDA"}, "diffusion language model"),
    ],
)
def test_a_server_that_would_not_run_what_is_decided_does_not_start(server, why, capfd):
    with pytest.raises(SystemExit):
        Launch(Guard(POLICY), PendingResults()).learn_scheduler({}, served(**server))
    assert why in capfd.readouterr().err


def test_a_model_without_thinking_does_not_start_with_budgets(capfd):
    guard = Guard(Policy(effort={"low": 5}))
    with pytest.raises(SystemExit):
        Launch(guard, PendingResults()).learn_scheduler({}, served())

    said = capfd.readouterr().err
    assert "does not serve: policy in code: thinking budgets: thinking_start_token_id" in said


def test_a_model_that_generates_nothing_does_not_start_with_decisions():
    process = served()
    process.model_config.is_generation = False
    why = "^policy in code: its decisions are for servers that generate text; this server does not$"
    with pytest.raises(PolicyError, match=why):
        Guard(POLICY).learn(Gate.SCHEDULER, process)
    Guard(Policy()).learn(Gate.SCHEDULER, process)


def test_an_error_in_the_policy_names_the_file():
    with pytest.raises(PolicyError, match=r"policy in code: defaults.processor: expected"):
        Guard(Policy(defaults=Chosen(processor="NoSuch")))


def test_the_process_says_what_is_wrong_and_ends(capfd):
    with pytest.raises(SystemExit):
        installation.end(PolicyError("a wrong thing"))
    assert "this process does not serve: a wrong thing" in capfd.readouterr().err


# With SGLANG_USE_PICKLE_IPC=1 they get as far as this.
@pytest.mark.parametrize("payload", [None, "calm"])
@pytest.mark.parametrize(
    ("given", "got"), [("text", "'text'"), (["a", "list"], "list of 2"), (5, "5")]
)
def test_parameters_that_are_no_object_end_their_own_request(deciding, payload, given, got):
    req = Req(None, given)
    req.custom_logit_processor = payload
    SchedulerGate(deciding, PendingResults(), Arrivals()).admit_req(None, req)

    assert req.ended[:2] == (f"custom_params: expected an object, got {got}", 400)
