"""Processors that come whole: in one text, or in an entry of metadata."""

import json
from types import SimpleNamespace

import pytest
from fastapi import HTTPException

from sglang_lp import wire
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp.builtins import DisallowedTokensLogitsProcessor, DRYLogitProcessor
from sglang_lp.errors import RequestError
from sglang_lp.policy.sections import Chosen, Profile
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.bounds import MAX_ENTRIES
from sglang_lp.server.front.fields import Reader
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.reserved_keys import EFFORT, ROUTED, add_own, check_origin, check_shape
from sglang_lp.server.scheduler.gate import SchedulerGate
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.trust import Policy
from support.fakes.requests import Req

BANS = "DisallowedTokensLogitsProcessor"
PAYLOAD = DisallowedTokensLogitsProcessor.to_str()
GOOD = {"token_ids": [99]}
WHOLE = wire.fold(BANS, GOOD)
READER = Reader(Guard(Policy.default()))
SERVING = SimpleNamespace(
    tokenizer_manager=SimpleNamespace(
        server_args=SimpleNamespace(enable_custom_logit_processor=True)
    )
)
#: What must not pass, whichever way it comes.
BAD = {
    "a token of no vocabulary": wire.fold(BANS, {"token_ids": [100]}),
    "an unknown parameter": wire.fold(BANS, {**GOOD, "b": 1}),
    "another class": wire.fold(wire.payload_for("os", "abort"), GOOD),
    "another name": wire.fold("os:abort", GOOD),
    "an own key": wire.fold(BANS, {**GOOD, "__sglang_reasoning_in_grammar": True}),
    "an own key of the toolkit": wire.fold(BANS, {**GOOD, EFFORT: "low"}),
    "a text in a text": wire.fold(WHOLE, {}),
    "the request": wire.fold(BANS, {**GOOD, "__req__": 1}),
    "no JSON": '{"processor"',
    "too long": wire.fold(BANS, {"token_ids": [1] * wire.MAX_WHOLE}),
    "no such name": "nobody",
    "nothing": "",
}
bad = pytest.mark.parametrize("text", BAD.values(), ids=BAD)


def served(**arguments):
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=100, hf_eos_token_id={2}),
        server_args=SimpleNamespace(speculative_algorithm=None, **arguments),
        preferred_sampling_params=None,
    )


def kept_of(metadata, custom_params=None):
    """Return the custom_params of a response with this metadata."""
    sampling = {"custom_params": custom_params}
    READER.read_response_form(sampling, SimpleNamespace(metadata=metadata))
    return sampling["custom_params"]


def kept(text, custom_params=None):
    """Return the custom_params of a response with this entry of metadata."""
    return kept_of({"sglang_lp": text}, custom_params)


def tokenized(payload, custom_params):
    return SimpleNamespace(
        custom_logit_processor=payload,
        sampling_params=SimpleNamespace(custom_params=custom_params),
    )


# What the front ends keep


@pytest.mark.parametrize("metadata", [None, {}, {"user": "7"}, "text", ["sglang_lp"]])
def test_other_metadata_is_left_alone(metadata):
    assert kept_of(metadata) is None
    for raw in (
        None,
        *(SimpleNamespace(_json=one) for one in ({"metadata": metadata}, [metadata])),
    ):
        chat = SimpleNamespace(custom_params=None, custom_logit_processor=None)
        for read in (READER.read_chat, READER.read_completion):
            read(SERVING, chat, raw)
            assert chat.custom_params is None


def test_the_entry_is_kept_beside_what_the_request_has():
    chat = SimpleNamespace(custom_params={"a": 1}, custom_logit_processor=None)
    raw = SimpleNamespace(_json={"metadata": {"sglang_lp": WHOLE, "user": "7"}})
    READER.read_chat(SERVING, chat, raw)

    assert chat.custom_params == {"a": 1, ROUTED: WHOLE}
    check_origin(chat.custom_params)


def test_no_client_sends_the_key_itself():
    for custom_params in ({ROUTED: WHOLE}, kept(WHOLE, {ROUTED: WHOLE})):
        with pytest.raises(RequestError, match="is SGLang's own"):
            check_origin(custom_params)
    with pytest.raises(RequestError, match="is SGLang's own"):
        check_shape({ROUTED: WHOLE}, None)


# Admission


@pytest.mark.parametrize("text", [WHOLE, wire.fold(PAYLOAD, GOOD), json.dumps(json.loads(WHOLE))])
@pytest.mark.parametrize("entry", [False, True])
def test_from_here_on_it_is_a_request_like_any_other(guard, text, entry):
    request = tokenized(None, kept(text)) if entry else tokenized(text, None)
    Admission(guard).admit(request, served(), SimpleNamespace())

    assert request == tokenized(PAYLOAD, GOOD)
    assert type(request.sampling_params.custom_params) is dict


def test_a_name_or_payload_alone_may_stand_in_the_entry(guard):
    dry = DRYLogitProcessor.to_str()
    for text in ("DRYLogitProcessor", dry):
        request = tokenized(None, kept(text))
        Admission(guard).admit(request, served(), SimpleNamespace())

        assert request == tokenized(dry, {})


def test_other_parameters_join_those_of_the_text(guard):
    request = tokenized(None, kept(wire.fold(BANS, {}), GOOD))
    Admission(guard).admit(request, served(), SimpleNamespace())

    assert request == tokenized(PAYLOAD, GOOD)


def test_what_sglang_added_stays(guard):
    added = add_own(None, EFFORT, "low")
    request = tokenized(WHOLE, added)
    Admission(guard).admit(request, served(), SimpleNamespace())

    assert request.sampling_params.custom_params == {**GOOD, EFFORT: "low"}


@bad
@pytest.mark.parametrize("entry", [False, True])
def test_the_checks_are_the_same(guard, text, entry):
    request = tokenized(None, kept(text)) if entry else tokenized(text, None)
    before = request.custom_logit_processor, request.sampling_params.custom_params
    with pytest.raises(RequestError):
        Admission(guard).admit(request, served(), SimpleNamespace())

    assert (request.custom_logit_processor, request.sampling_params.custom_params) == before
    assert sum(guard.audit.counts.values()) == 1


TWICE = "^custom_params: .token_ids. is given twice, .* the processor; give it once$"


@pytest.mark.parametrize(
    ("payload", "custom_params", "why"),
    [
        (PAYLOAD, kept(WHOLE), r"got another in metadata\[.*\]; give it once$"),
        (None, kept(WHOLE, GOOD), TWICE),
        (WHOLE, GOOD, TWICE),
        (WHOLE, [1], "^custom_params: expected an object, got list of 1$"),
        (None, kept(5), r'metadata\["sglang_lp"\]: expected text, got 5'),
        (None, kept(None), "expected text, got None"),
        (None, kept({"processor": BANS}), "expected text"),
    ],
)
def test_what_is_given_twice_or_is_no_text_is_refused(guard, payload, custom_params, why):
    with pytest.raises(RequestError, match=why):
        Admission(guard).admit(tokenized(payload, custom_params), served(), SimpleNamespace())


def test_a_server_that_takes_no_processors_says_so(guard):
    with pytest.raises(RequestError) as refusal:
        Admission(guard).admit(
            tokenized(None, kept(WHOLE)),
            served(enable_custom_logit_processor=False),
            SimpleNamespace(),
        )
    assert str(refusal.value) == (
        "custom_logit_processor: expected none, as this server takes no custom logit processors; "
        "ask its operator to add --enable-custom-logit-processor"
    )


def test_a_profile_is_chosen_so_too():
    chosen = Chosen(processor=BANS, params={"token_ids": [3]})
    profile = Profile(processors=(chosen,), may_set=("token_ids",))
    guard = Guard(Policy(builtins=False, profiles={"calm": profile}))

    request = tokenized(None, kept("calm"))
    Admission(guard).admit(request, served(), SimpleNamespace())
    assert request == tokenized("calm", {})

    request = tokenized(None, kept(wire.fold("calm", GOOD)))
    Admission(guard).admit(request, served(), SimpleNamespace())
    assert request == tokenized("calm", GOOD)

    with pytest.raises(RequestError, match="lets a request set token_ids"):
        Admission(guard).admit(
            tokenized(None, kept(wire.fold("calm", {"eos": 1}))), served(), SimpleNamespace()
        )


def streaming(payload, custom_params):
    return SimpleNamespace(
        text="a",
        input_ids=None,
        custom_logit_processor=payload,
        sampling_params={"custom_params": custom_params},
        max_thinking_tokens=None,
    )


def test_a_stream_is_refused_before_its_status_is_sent(guard):
    Admission(guard).admit_stream(served(), streaming(None, kept(WHOLE)))
    for text in BAD.values():
        for request in (streaming(text, None), streaming(None, kept(text))):
            with pytest.raises(HTTPException) as refusal:
                Admission(guard).admit_stream(served(), request)
            assert refusal.value.status_code == 400


@pytest.mark.parametrize("entry", [False, True])
def test_a_list_is_checked_before_any_of_it_is_dispatched(guard, entry):
    def listed(text):
        one = {"custom_params": kept(text) if entry else None}
        return SimpleNamespace(
            custom_logit_processor=None if entry else [text] * 3,
            sampling_params=[one] * 3,
            batch_size=3,
            max_thinking_tokens=None,
            parallel_sample_num=1,
        )

    assert [*Admission(guard).check_list(served(), listed(WHOLE))]
    many = wire.fold(BANS, {"token_ids": [1] * (MAX_ENTRIES // 2)})
    for text in (*BAD.values(), many):
        with pytest.raises(RequestError):
            [*Admission(guard).check_list(served(), listed(text))]


# The scheduler


def test_what_came_by_another_way_is_taken_apart_in_the_scheduler(guard):
    req = Req(WHOLE, vocab_size=100)
    SchedulerGate(guard, PendingResults(), Arrivals()).admit_req(None, req)

    assert req.ended is None
    assert req.custom_logit_processor == PAYLOAD
    assert req.sampling_params.custom_params["token_ids"] == [99]
    assert "__req__" in req.sampling_params.custom_params


@bad
def test_the_scheduler_checks_the_same(guard, text):
    req = Req(text, vocab_size=100)
    SchedulerGate(guard, PendingResults(), Arrivals()).admit_req(None, req)

    assert req.ended is not None
    assert req.custom_logit_processor is None


# SGLang's own front ends


CHAT = {"model": "m", "messages": [{"role": "user", "content": "?"}]}


def test_sglangs_types_have_no_place_for_it_but_the_body_and_responses(sglang):
    from sglang.srt.entrypoints.openai import protocol

    chat = protocol.ChatCompletionRequest(**CHAT, metadata={"sglang_lp": WHOLE})
    completion = protocol.CompletionRequest(model="m", prompt="?", metadata={"sglang_lp": WHOLE})
    assert not hasattr(chat, "metadata")
    assert not hasattr(completion, "metadata")
    response = protocol.ResponsesRequest(model="m", input="?", metadata={"sglang_lp": WHOLE})
    assert response.metadata == {"sglang_lp": WHOLE}
