"""The gate in the HTTP process, on requests as SGLang holds them there."""

from __future__ import annotations

import json
import math
from array import array
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from types import SimpleNamespace

import pytest

from sglang_lp import wire
from sglang_lp.builtins import (
    ChoiceLogitProcessor,
    DisallowedTokensLogitsProcessor,
    DRYLogitProcessor,
    ForcedSequenceLogitProcessor,
    LoopBreakerLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.errors import InvalidParameter, PayloadRefused, RequestError, Unsupported
from sglang_lp.policy.sections import Chosen
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.front import admission, header, meta_info, scoring
from sglang_lp.server.front.admission import Admission, supports_sampling_mask
from sglang_lp.server.front.bounds import MAX_COPIED, MAX_ENTRIES, MAX_SCORED
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.reserved_keys import (
    BUDGET_FIELD,
    EFFORT,
    MAX_KEYS,
    THOUGHT,
    add_own,
    check_origin,
    check_shape,
    remember,
)
from sglang_lp.trust import Gate, Policy

VOCAB_SIZE = 100
PAYLOAD = DisallowedTokensLogitsProcessor.to_str()
EVIL = wire.payload_for("os", "abort")
GOOD, BAD = {"token_ids": [VOCAB_SIZE - 1]}, {"token_ids": [VOCAB_SIZE]}
OWN_KEY = "__sglang_reasoning_end_token_ids"
OWN = {OWN_KEY: [1]}
THINKING = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}


def manager(*, speculative=None, preferred=None, **attributes):
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=VOCAB_SIZE, hf_eos_token_id={2}),
        server_args=SimpleNamespace(
            speculative_algorithm=speculative, preferred_sampling_params=preferred
        ),
        preferred_sampling_params=preferred,
        **attributes,
    )


# A request that was tokenized


def tokenized(payload, custom_params=None, **sampling):
    return SimpleNamespace(
        custom_logit_processor=payload,
        sampling_params=SimpleNamespace(custom_params=custom_params, **sampling),
    )


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"input_ids": []}, "expected a token or more"),
        (
            {"input_ids": [1, 2], "token_indices_to_pool": [2]},
            "positions in the prompt of 2 tokens",
        ),
    ],
)
def test_the_prompt_is_checked_as_sglang_has_tokenized_it(guard, prompt, said):
    request = tokenized(None)
    vars(request).update(prompt)
    with pytest.raises(RequestError, match=said):
        Admission(guard).admit(request, manager(), SimpleNamespace())


@pytest.mark.parametrize("width", [3, 4])
def test_embeddings_are_as_wide_as_the_models(guard, width):
    from sglang.srt.managers.embed_types import PositionalEmbeds
    from torch import zeros

    request, served = tokenized(None), manager()
    served.model_config.hidden_size = 4
    given = PositionalEmbeds(embeds=[zeros(width)], positions=[0])
    vars(request).update(input_ids=[1], positional_embed_overrides=given)
    with nullcontext() if width == 4 else pytest.raises(RequestError, match="of 4 numbers"):
        Admission(guard).admit(request, served, SimpleNamespace())


def test_positions_in_the_prompt_are_taken(guard):
    request = tokenized(None)
    vars(request).update(input_ids=[1, 2], token_indices_to_pool=[1])
    Admission(guard).admit(request, manager(), SimpleNamespace())


LOGPROBS = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 0}


def asking_for_logprobs(guard, monkeypatch, *texts, is_http=True):
    """Admit the texts of one HTTP request."""
    scope = {} if is_http else None
    monkeypatch.setattr(header, "_scope", SimpleNamespace(get=lambda: scope))
    for given in texts:
        fields = {"input_ids": [1] * 1_024, "token_ids_logprob": None, **LOGPROBS, **given}
        body = SimpleNamespace(return_text_in_logprobs=fields.pop("as_text", False))
        request = tokenized(None, **{"n": fields.pop("n")} if "n" in fields else {})
        vars(request).update(fields)
        Admission(guard).admit(request, manager(), body)


# 1,500 tokens with 1,024 logprobs each stopped SGLang's HTTP process for two seconds, and its
# scheduler for more: `convert_logprob_style` and `add_input_logprob_return_values`.
@pytest.mark.parametrize(
    "texts",
    [
        [{"top_logprobs_num": 2_048}],
        [{"top_logprobs_num": 1_023}, {"top_logprobs_num": 1_024}],
        [{"token_ids_logprob": [5] * 2_048}],
        [{"top_logprobs_num": 31, "n": 65}],
        [{"top_logprobs_num": 511, "as_text": True}, {}],
        [{"top_logprobs_num": 4_096, "token_indices_to_pool": [1] * 512}],
        [{"top_logprobs_num": 2_048, "input_ids": None, "input_embeds": [[0.5]] * 1_024}],
        [{"top_logprobs_num": 2_047}, {"logprob_start_len": 1_023}],
    ],
)
def test_one_http_request_gets_so_many_logprobs_of_its_prompts(guard, monkeypatch, texts):
    with pytest.raises(RequestError, match="logprob_start_len: expected at most 2097152 logprobs"):
        asking_for_logprobs(guard, monkeypatch, *texts)

    asking_for_logprobs(guard, monkeypatch, *texts, is_http=False)


@pytest.mark.parametrize(
    "texts",
    [
        [{"top_logprobs_num": 2_047}],
        [{"top_logprobs_num": 1_023}] * 2,
        [{"top_logprobs_num": 63, "n": 32}],
        [{"top_logprobs_num": 511, "as_text": True}],
        [{"top_logprobs_num": 4_095, "logprob_start_len": 512}],
        [{"top_logprobs_num": 4_095, "logprob_start_len": 2_000}],
        [{"top_logprobs_num": 4_096, "logprob_start_len": -1}],
        [{"top_logprobs_num": 2_047}, {"logprob_start_len": -1}, {"logprob_start_len": 1_024}],
        [{"top_logprobs_num": 4_096, "return_logprob": False}],
        # /v1/score asks for all of a prompt, and gets the positions of its items.
        [{"top_logprobs_num": 4_095, "multi_item_delimiter_indices": [1] * 512}],
    ],
)
def test_a_trainer_gets_that_many_logprobs(guard, monkeypatch, texts):
    asking_for_logprobs(guard, monkeypatch, *texts)


def test_choices_that_are_to_be_scored_are_noted_on_the_body(guard):
    choices = {"token_ids": [7, 8], "lengths": [1, 1], "pick": "likeliest"}
    request = tokenized(ChoiceLogitProcessor.to_str(), choices)
    vars(request).update(
        input_ids=[1, 2], mm_inputs=None, input_embeds=None, session_params=None, session_id=None
    )
    body = SimpleNamespace()
    Admission(guard).admit(request, manager(), body)

    noted = getattr(body, scoring._SCORED)
    assert [choice.sequences for choice in noted.choices] == [[(7,)], [(8,)]]


@pytest.mark.parametrize("request_", [SimpleNamespace(), tokenized(None), tokenized(None, {})])
def test_a_request_without_a_processor_is_not_looked_at(guard, request_):
    before = vars(request_).copy()

    assert Admission(guard).admit(request_, None, None) is None
    assert vars(request_) == before


def test_parameters_of_a_request_for_an_embedding_are_refused(guard):
    request = tokenized(None, GOOD)
    del request.custom_logit_processor  # SGLang's class for embeddings has no such field

    with pytest.raises(RequestError, match="no processor of this request takes 'token_ids'"):
        Admission(guard).admit(request, manager(), SimpleNamespace())


@pytest.mark.parametrize("text", ["DisallowedTokensLogitsProcessor", PAYLOAD.replace(" ", "\n")])
def test_from_here_on_only_the_operators_own_spelling_travels(guard, text):
    params = dict(GOOD)
    request = tokenized(text, params)

    # A value would replace the request.
    assert (
        Admission(guard).admit(request, manager(), SimpleNamespace(), "more", of="SGLang's") is None
    )
    assert request.custom_logit_processor == PAYLOAD
    assert request.sampling_params.custom_params is params
    assert params == GOOD


def test_a_processor_without_parameters_gets_a_dict_for_sglang_to_put_its_history_in(guard):
    request = tokenized(DRYLogitProcessor.to_str())
    Admission(guard).admit(request, manager(), SimpleNamespace())

    assert request.sampling_params.custom_params == {}


@pytest.mark.parametrize(
    ("payload", "params", "error"),
    [
        (EVIL, GOOD, PayloadRefused),
        ("", None, PayloadRefused),
        (PAYLOAD, None, InvalidParameter),
        (PAYLOAD, BAD, InvalidParameter),
    ],
)
def test_a_refused_request_stays_as_it_is_and_is_counted_at_this_gate(
    guard, payload, params, error
):
    guard.gate = Gate.SCHEDULER
    request = tokenized(payload, params)
    with pytest.raises(error):
        Admission(guard).admit(request, manager(), SimpleNamespace())

    assert request == tokenized(payload, params)
    counts = {reason: count for (_, reason), count in guard.audit.counts.items()}
    assert sum(counts.values()) == 1


LOOPS = LoopBreakerLogitProcessor.to_str()
BEAMS = (
    "beam_width: expected 1 with LoopBreakerLogitProcessor, got 2: it may end the answer, and "
    'cannot end one beam of several; send "action": "ban", or leave out one of them'
)


@pytest.mark.parametrize(
    ("width", "why"), [(2, BEAMS), (1.5, "beam_width: expected a whole number, got 1.5")]
)
def test_beams_that_a_processor_cannot_follow_are_refused_and_counted(guard, width, why):
    guard.gate = Gate.SCHEDULER
    counted = []
    guard.audit = SimpleNamespace(refused=lambda *refusal: counted.append(refusal))
    with pytest.raises(RequestError) as caught:
        Admission(guard).admit(
            tokenized(LOOPS, {"action": "end"}, beam_width=width), manager(), SimpleNamespace()
        )

    assert str(caught.value) == why
    assert counted == [(Gate.ADMISSION, caught.value)]


@pytest.mark.parametrize("sampling", [{}, *({"beam_width": width} for width in (None, 0, 1))])
def test_one_beam_is_no_beam_search(guard, sampling):
    request = tokenized(LOOPS, {"action": "end"}, **sampling)
    Admission(guard).admit(request, manager(), SimpleNamespace())

    assert not guard.audit.counts


DIFFUSES = (
    "^custom_logit_processor: expected none, got sglang_lp.builtins:DisallowedTokensLogitsProcessor"
    r": this server runs a diffusion language model \(LowConfidence\), which does not call it; "
    "send the request to another server$"
)


def test_a_server_of_a_diffusion_language_model_refuses(guard):
    served = manager()
    served.server_args.dllm_algorithm = "LowConfidence"

    with pytest.raises(Unsupported, match=DIFFUSES):
        Admission(guard).admit(tokenized(PAYLOAD, GOOD), served, SimpleNamespace())


def test_a_speculative_server_is_known_by_its_arguments(guard):
    with pytest.raises(Unsupported, match=r"\(UNO\)"):
        Admission(guard).admit(
            tokenized(PAYLOAD, GOOD), manager(speculative="uno"), SimpleNamespace()
        )


@pytest.mark.parametrize(("top_k", "taken"), [(1, True), (40, False)])
def test_whether_tokens_are_sampled_is_known_by_top_k(guard, top_k, taken):
    served = manager(speculative="eagle")
    served.server_args.speculative_accept_threshold_single = 0.5
    request = tokenized(PAYLOAD, GOOD, top_k=top_k)
    if taken:
        Admission(guard).admit(request, served, SimpleNamespace())
    else:
        with pytest.raises(Unsupported, match=r"--speculative-accept-threshold-single 0\.5"):
            Admission(guard).admit(request, served, SimpleNamespace())


@pytest.mark.parametrize("attributes", [{}, {"tokenizer": None}])
def test_a_server_without_a_tokenizer_cannot_resolve_text(guard, attributes):
    params = {"thinking_budget": 5, "thinking_start": "<", "thinking_end": ">"}
    with pytest.raises(InvalidParameter, match="tokenizer"):
        Admission(guard).admit(
            tokenized(ThinkingBudgetLogitProcessor.to_str(), params),
            manager(**attributes),
            SimpleNamespace(),
        )


def test_the_guard_knows_the_served_tokenizer(guard):
    tokenizer = object()
    Admission(guard).admit(
        tokenized(PAYLOAD, GOOD), manager(tokenizer=tokenizer), SimpleNamespace()
    )

    assert guard.server.tokenizer is tokenizer


# A streaming request, before anything was done with it


def streaming(payload, sampling=None, thinking=None, *, text=None, input_ids=None):
    return SimpleNamespace(
        text=text,
        input_ids=input_ids,
        custom_logit_processor=payload,
        sampling_params=sampling,
        max_thinking_tokens=thinking,
    )


def answer(guard, request, **server):
    """Return the status and message that SGLang would answer."""
    from fastapi import HTTPException

    try:
        # A value would replace SGLang's arguments.
        assert Admission(guard).admit_stream(manager(**server), request) is None
    except HTTPException as refusal:
        return refusal.status_code, refusal.detail
    return 200, None


def with_params(*custom_params):
    return [{"custom_params": params} for params in custom_params]


def test_a_stream_without_a_processor_is_not_looked_at(guard):
    assert Admission(guard).admit_stream(None, streaming(None)) is None


def test_a_header_says_of_a_stream_without_a_processor_that_nothing_ran(guard):
    told = [None]
    before = header._answering.set(told)
    try:
        Admission(guard).admit_stream(None, streaming(None))
    finally:
        header._answering.reset(before)

    assert told == [{}]


def test_a_budget_of_a_stream_is_kept_as_the_server_prefers_its_parameters():
    effort = {"low": 4, "high": -1, "answer_room": 10}
    thinking = Chosen(
        processor="ThinkingBudgetLogitProcessor", params={**THINKING, "thinking_budget": 30}
    )
    ruled = Guard(Policy(defaults=thinking, effort=effort))
    served = manager(preferred={"custom_params": {"dry_base": 2}})
    request = streaming(None, {"top_p": 1}, 9, input_ids=[1, 2])

    assert Admission(ruled).admit_stream(served, request) is None
    assert request.sampling_params["custom_params"] == {"dry_base": 2, BUDGET_FIELD: 9}
    assert request.max_thinking_tokens is None


@pytest.mark.parametrize(
    ("payloads", "samplings", "status"),
    [
        (PAYLOAD, with_params(GOOD)[0], 200),
        (PAYLOAD, with_params(BAD)[0], 400),
        (PAYLOAD, {}, 400),
        (PAYLOAD, None, 400),
        (EVIL, with_params(GOOD)[0], 400),
        ("", with_params(GOOD)[0], 400),
        # One for all, as SGLang spreads them over the requests of a list.
        (PAYLOAD, with_params(GOOD, GOOD), 200),
        (PAYLOAD, with_params(GOOD, BAD), 400),
        ([PAYLOAD, PAYLOAD], with_params(GOOD)[0], 200),
        ([PAYLOAD, EVIL], with_params(GOOD)[0], 400),
        ([PAYLOAD, PAYLOAD], None, 400),
        # One for each.
        ([PAYLOAD, None], with_params(GOOD, None), 200),
        ([PAYLOAD, None], with_params(GOOD, GOOD), 400),
        ([None, PAYLOAD], with_params(None, BAD), 400),
        ([None, PAYLOAD], with_params(None, GOOD), 200),
        ([None, None], None, 200),
        ([PAYLOAD, PAYLOAD], [*with_params(GOOD), None], 400),
        ([PAYLOAD], ["abc"], 400),
        (PAYLOAD, "abc", 400),
        (PAYLOAD, 5, 400),
        # SGLang's to refuse: not as many as requests. Here it must not fail.
        ([PAYLOAD, PAYLOAD], with_params(GOOD), 200),
    ],
)
def test_a_stream_is_refused_before_its_status_is_sent(guard, payloads, samplings, status):
    assert answer(guard, streaming(payloads, samplings))[0] == status


@pytest.mark.parametrize(
    ("prompt", "status"),
    [
        ({"text": "one"}, 400),
        ({"text": ""}, 400),
        ({"input_ids": [1, 2]}, 400),
        # SGLang reads the text if there is one.
        ({"text": ["one", "two"], "input_ids": [1]}, 200),
        ({"input_ids": [[1], [2]]}, 200),
        ({"input_ids": []}, 200),
        ({}, 200),
    ],
)
def test_a_list_of_payloads_is_no_payload_of_a_single_stream(guard, prompt, status):
    request = streaming([DRYLogitProcessor.to_str()] * 2, None, **prompt)

    assert answer(guard, request)[0] == status


def test_the_answer_to_a_stream_says_why_and_the_refusal_is_counted_at_this_gate(guard):
    guard.gate = Gate.SCHEDULER
    status, why = answer(guard, streaming(PAYLOAD, with_params(BAD)[0]))

    assert status == 400
    assert why == (
        "token_ids of DisallowedTokensLogitsProcessor: expected token ids of the "
        "served model, 0 to 99, got 100; these ids are probably another model's"
    )
    assert guard.audit.counts == {("admission", "invalid_parameter"): 1}


@pytest.mark.parametrize(
    ("payloads", "samplings", "times"),
    [
        (PAYLOAD, {}, 1),
        (PAYLOAD, [{}] * 3, 1),
        (PAYLOAD, [{}, {}], 1),
        (PAYLOAD, [{"custom_params": {"a": 1}} for _ in range(2)], 1),
        (PAYLOAD, [{"custom_params": {"a": one}} for one in (1, True)], 2),
        ([PAYLOAD] * 2, {}, 1),
        (PAYLOAD, [{}, {"top_k": 1}], 2),
    ],
)
def test_what_requests_of_a_stream_share_is_checked_once(
    guard, monkeypatch, payloads, samplings, times
):
    checked = []
    monkeypatch.setattr(guard, "admit", checked.append)
    answer(guard, streaming(payloads, samplings))

    assert [one.payload for one in checked] == [PAYLOAD] * times


def test_a_stream_on_a_speculative_server_is_refused(guard):
    request = streaming(PAYLOAD, with_params(GOOD)[0])

    assert answer(guard, request, speculative="UNO")[0] == 400


@pytest.mark.parametrize(
    ("width", "expected"),
    [(2, (400, BEAMS)), (1, (200, None)), (None, (200, None)), ("2", (200, None))],
)
def test_a_stream_of_a_beam_search_is_refused(guard, width, expected):
    # A width that is no number is SGLang's to refuse.
    request = streaming(LOOPS, {**with_params({"action": "end"})[0], "beam_width": width})

    assert answer(guard, request) == expected


def test_parameters_that_the_server_prefers_hold_unless_the_stream_sets_its_own(guard):
    forced = ForcedSequenceLogitProcessor.to_str()
    preferred = with_params(GOOD)[0]

    assert answer(guard, streaming(forced, None), preferred=preferred)[0] == 200
    assert answer(guard, streaming(forced, {"top_p": 1}), preferred=preferred)[0] == 200
    assert answer(guard, streaming(forced, with_params(BAD)[0]), preferred=preferred)[0] == 400


@pytest.mark.parametrize(
    ("params", "tokens", "status"),
    [
        (THINKING, 5, 200),
        (THINKING, None, 200),
        (THINKING, 0, 200),
        (THINKING, -1, 200),
        (THINKING, "5", 400),
        ({**THINKING, "thinking_budget": "5"}, 5, 200),
        ({**THINKING, "thinking_budget": "5"}, None, 400),
        (None, 5, 400),
        ("text", 5, 400),
        ([1], 5, 400),
    ],
)
def test_sglangs_own_thinking_limit_is_the_thinking_budget_of_a_stream(
    guard, params, tokens, status
):
    payload = ThinkingBudgetLogitProcessor.to_str()
    request = streaming(payload, with_params(params)[0], tokens)

    assert answer(guard, request)[0] == status
    assert request.sampling_params == with_params(params)[0]


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("copies", [1, 3, "many", None])
def test_a_stream_lists_so_much_over_all_its_texts_and_copies(guard, texts, copies):
    entries = MAX_ENTRIES // 8
    params = {**with_params({"token_ids": [5] * entries})[0], "n": copies}
    request = streaming(PAYLOAD, params, text=["a"] * texts if texts > 1 else "a")

    status = answer(guard, request)[0]

    # A number that is none is SGLang's to refuse.
    assert status == (400 if texts * (3 if copies == 3 else 1) > 8 else 200)


def test_a_stream_that_sglang_has_begun_with_was_admitted(guard, monkeypatch):
    monkeypatch.setattr(guard, "admit", None)
    request = streaming([PAYLOAD] * 3, with_params(GOOD, GOOD, GOOD))
    request.is_single = False  # set while it is normalized

    assert answer(guard, request)[0] == 200


# A list, before anything of it was dispatched


def list_check(guard):
    """Return the whole check of a list."""

    def check(manager, request, *_):
        for _ in Admission(guard).check_list(manager, request):
            pass

    return check


def listed(payloads, samplings, copies=1):
    """Return a list of requests as SGLang normalizes it."""
    return SimpleNamespace(
        batch_size=len(payloads),
        custom_logit_processor=payloads * copies,
        sampling_params=samplings * copies,
        max_thinking_tokens=None,
        parallel_sample_num=copies,
    )


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(("payload", "params"), [(EVIL, GOOD), (PAYLOAD, BAD), (None, OWN)])
def test_a_list_is_refused_if_any_of_it_is(guard, payload, params, at):
    payloads, samplings = [PAYLOAD] * 3, with_params(GOOD, GOOD, GOOD)
    check = list_check(guard)
    assert check(manager(), listed(payloads, samplings), "request", {}) is None
    payloads[at], samplings[at] = payload, with_params(params)[0]

    with pytest.raises(RequestError):
        check(manager(), listed(payloads, samplings), "request", {})


def test_a_list_with_too_few_of_anything_is_refused(guard):
    few = listed([PAYLOAD] * 3, with_params(GOOD, GOOD))

    with pytest.raises(RequestError) as refusal:
        list_check(guard)(manager(), few)
    assert str(refusal.value) == (
        "custom_logit_processor: expected 3 entries, and as many of sampling_params, got 3 and 2; "
        "give one for each prompt"
    )
    assert guard.audit.counts == {("admission", "invalid_request"): 1}


@pytest.mark.parametrize(("more", "is_refused"), [(0, False), (1, True)])
def test_texts_whose_choices_are_scored_are_counted_over_the_whole_list(guard, more, is_refused):
    picks = [
        {"token_ids": [7, 8], "lengths": [1, 1], "pick": pick} for pick in ("likeliest", "sampled")
    ]
    half = MAX_SCORED // 2
    samplings = with_params(*picks[:1] * half, *picks[1:] * (half + more))
    request = listed([ChoiceLogitProcessor.to_str()] * len(samplings), samplings)

    refusal = pytest.raises(RequestError, match=r"^pick: expected at most") if is_refused else None
    with refusal or nullcontext():
        list_check(guard)(manager(), request)


def test_what_requests_of_a_list_share_is_checked_once(guard, monkeypatch):
    checked = []
    monkeypatch.setattr(guard, "admit", checked.append)
    list_check(guard)(manager(), listed([PAYLOAD] * 100, with_params(GOOD) * 100))

    assert checked == [Intake(PAYLOAD, GOOD)]


def test_a_list_for_embeddings_has_no_processors(guard):
    assert list_check(guard)(None, SimpleNamespace()) is None


@pytest.mark.parametrize(("texts", "copies"), [(1, 9), (9, 1), (3, 3)])
def test_one_http_request_lists_so_much_in_all(guard, texts, copies):
    most = {"token_ids": [5] * (MAX_ENTRIES // 8)}
    check = list_check(guard)
    fits, larger = (listed([PAYLOAD] * n, with_params(most) * n, 1) for n in (8, 9))
    assert check(manager(), fits) is None
    with pytest.raises(RequestError, match=r"at most 262144 entries .* got 294912 over all"):
        check(manager(), larger)
    with pytest.raises(RequestError, match="got 294912"):
        check(manager(), listed([PAYLOAD] * texts, with_params(most) * texts, copies))
    assert guard.audit.counts == {("admission", "invalid_request"): 2}


def test_one_request_sends_the_scheduler_so_many_copies_of_its_prompt(guard):
    def copies(number, payload=PAYLOAD, params=GOOD, tokens=1 << 17):
        request = tokenized(payload, params, n=number)
        request.input_ids = array("q", [5]) * tokens
        Admission(guard).admit(request, manager(), SimpleNamespace())

    copies(128)
    copies(None, tokens=MAX_COPIED)
    copies(MAX_COPIED, tokens=1)
    copies(129, payload=None, params=None)
    with pytest.raises(RequestError, match=r"^n: expected at most 16777216 tokens"):
        copies(129)


def test_one_request_lists_no_more_than_a_list_of_them(guard):
    params = {"token_ids": [5] * (MAX_ENTRIES + 1)}
    with pytest.raises(RequestError, match="at most 262144 entries"):
        Admission(guard).admit(tokenized(PAYLOAD, params), manager(), SimpleNamespace())
    assert guard.audit.counts == {("admission", "invalid_request"): 1}


# What the guard is asked


@pytest.fixture
def asked(guard, monkeypatch):
    """Record each request to the guard, and admit it."""
    asked = []
    monkeypatch.setattr(guard, "admit", asked.append)
    return asked


def asking(**more):
    return Intake(**{"payload": PAYLOAD, "custom_params": GOOD, **more})


def test_the_guard_is_asked_about_all_that_a_request_asks_for(guard, asked):
    Admission(guard).admit(tokenized(PAYLOAD, GOOD), manager(), SimpleNamespace())
    request = tokenized(PAYLOAD, GOOD, top_k=1, beam_width=3, max_new_tokens=7)
    vars(request).update(return_sampling_mask=1, return_logprob=1, logprob_start_len=-1)
    vars(request).update(input_ids=[4, 5])
    Admission(guard).admit(request, manager(), SimpleNamespace())

    everything = {"sampled": False, "limit": 7, "masked": True, "logprobs": True}
    assert asked == [
        asking(prompt_tokens=0),
        asking(**everything, beam_width=3, prompt_tokens=2),
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_guard_is_asked_about_all_that_a_list_asks_for(guard, asked, streamed):
    given = {"custom_params": GOOD}
    samplings = [
        given,
        {**given, "max_new_tokens": 7},
        {**given, "max_new_tokens": "many"},
        {**given, "beam_width": 1},
        {**given, "temperature": 0, "top_k": 5},
        {**given, "max_new_tokens": 9, "top_k": 1},
        {**given, "temperature": 1, "top_k": 5},
        *[given] * 4,
    ]
    obj = listed([PAYLOAD] * len(samplings), samplings)
    obj.text = None
    obj.return_sampling_mask = [*[False] * 7, True, False, False, False]
    obj.return_logprob = [*[False] * 8, True, False, False]
    obj.input_ids = [[1, 2]] * 9 + [[1, 2, 3], None]
    (Admission(guard).admit_stream if streamed else list_check(guard))(manager(), obj)

    assert asked == [
        asking(prompt_tokens=2),
        asking(prompt_tokens=2, limit=7),
        asking(prompt_tokens=2, beam_width=1),
        asking(prompt_tokens=2, sampled=False),
        asking(prompt_tokens=2, sampled=False, limit=9),
        asking(prompt_tokens=2, masked=True),
        asking(prompt_tokens=2, logprobs=True),
        asking(prompt_tokens=3),
        asking(prompt_tokens=None),
    ]


@pytest.mark.parametrize("reasoning", [True, False, None])
def test_the_guard_is_asked_whether_the_answers_of_a_list_begin_with_thoughts(
    guard, asked, reasoning
):
    obj = listed([PAYLOAD], [{"custom_params": GOOD}])
    obj.require_reasoning = reasoning
    list_check(guard)(manager(), obj)
    del obj.require_reasoning
    list_check(guard)(manager(), obj)

    assert [one.reasoning for one in asked] == [bool(reasoning), False]


@pytest.mark.parametrize(
    ("payload", "params", "names"),
    [
        (None, None, {}),
        (None, {"thinking_budget": -1}, {}),
        (None, add_own(None, THOUGHT, True), {}),
        (PAYLOAD, GOOD, {"DisallowedTokensLogitsProcessor": None}),
    ],
)
def test_an_answer_is_told_what_runs_on_it(guard, payload, params, names):
    told = [None]
    before = header._answering.set(told)
    Admission(guard).admit(tokenized(payload, params), manager(), SimpleNamespace())
    header._answering.reset(before)

    assert told == [names]


@pytest.mark.parametrize(
    ("payload", "params", "expected"),
    [
        (None, None, {}),
        (None, {"thinking_budget": -1}, {}),
        (PAYLOAD, GOOD, {meta_info._RUNS: True}),
    ],
)
def test_a_report_is_expected_with_an_answer_on_which_a_processor_runs(
    guard, payload, params, expected
):
    obj = SimpleNamespace()
    Admission(guard).admit(tokenized(payload, params), manager(), obj)

    assert vars(obj) == expected


def test_what_one_stream_asks_for_all_of_it_asks_for(guard, asked):
    request = streaming(PAYLOAD, with_params(GOOD)[0], input_ids=[[1], [2]])
    request.return_logprob = request.return_sampling_mask = True
    Admission(guard).admit_stream(manager(), request)

    assert asked == [asking(prompt_tokens=1, masked=True, logprobs=True)]


@pytest.fixture
def decides(guard, monkeypatch):
    """Return a guard whose policy bans a token, and which records its requests."""
    always = Policy(always=(Chosen(processor="DisallowedTokensLogitsProcessor", params=GOOD),))
    decides = Guard(always)
    monkeypatch.setattr(decides, "admit", guard.admit)
    return decides


def test_only_a_request_that_generates_gets_what_the_operator_decided(asked, guard, decides):
    for request in (tokenized(None), SimpleNamespace()):
        Admission(decides).admit(request, manager(), SimpleNamespace())
    Admission(guard).admit(tokenized(None), manager(), SimpleNamespace())

    assert asked == [asking(payload=None, custom_params=None, prompt_tokens=0)]


def test_each_of_a_list_without_processors_gets_what_the_operator_decided(asked, decides):
    request = listed([None, None], with_params(None, GOOD))
    request.custom_logit_processor = None
    list_check(decides)(manager(), request)

    assert asked == [asking(payload=None, custom_params=None), asking(payload=None)]


def test_a_list_that_does_not_say_so_has_no_copies(guard, asked):
    request = listed([PAYLOAD], with_params(LONG))
    del request.parallel_sample_num
    list_check(guard)(manager(), request)

    assert len(asked) == 1


def test_whatever_is_refused_may_be_waited_for(guard, monkeypatch):
    waiting = []

    @contextmanager
    def sending_placeholder(*for_whom):
        waiting.append(for_whom)
        yield

    monkeypatch.setattr(admission, "sending_placeholder", sending_placeholder)
    served, one = manager(), SimpleNamespace()
    several, stream = (
        listed([PAYLOAD], with_params(GOOD)),
        streaming(PAYLOAD, with_params(GOOD)[0]),
    )
    Admission(guard).admit(tokenized(PAYLOAD, GOOD), served, one)
    list_check(guard)(served, several)
    Admission(guard).admit_stream(served, stream)

    assert waiting == [(served, one), (served, several), (served, stream)]


def test_a_list_without_processors_is_looked_at_where_it_has_parameters(guard):
    check = list_check(guard)
    for sampling in (None, 5, "text", *with_params(None, {})):
        request = listed([None], [sampling])
        request.custom_logit_processor = None
        assert check(manager(), request) is None
    for params in (5, {"a": {"b": {}}}):
        request = listed([None], with_params(params))
        request.custom_logit_processor = None
        with pytest.raises(RequestError, match=r"^custom_params: "):
            check(manager(), request)


def test_each_of_a_list_that_has_no_processor_is_looked_at_beside_one_that_has(guard, monkeypatch):
    monkeypatch.setenv("SGLANG_USE_PICKLE_IPC", "0")
    check = list_check(guard)
    fine, nested = with_params({"thinking_budget": -1}, {"a": {"b": {}}})
    check(manager(), listed([PAYLOAD, None, None], [*with_params(GOOD), fine, fine]))
    with pytest.raises(RequestError, match=r"^custom_params: expected an object of"):
        check(manager(), listed([PAYLOAD, None, None], [*with_params(GOOD), fine, nested]))


LONG = {"token_ids": [5] * MAX_ENTRIES}


@pytest.mark.parametrize(
    ("prompt", "sampling", "status"),
    [
        ({"text": "of ten or more characters"}, with_params(LONG)[0], 200),
        ({"input_ids": [*range(10)]}, with_params(LONG)[0], 200),
        ({}, with_params(LONG)[0], 200),
        ({"text": ["one", "two"]}, with_params(LONG)[0], 400),
        ({"input_ids": [[1], [2]]}, with_params(LONG)[0], 400),
        *(
            ({"text": "one"}, {**with_params(LONG)[0], "n": copies}, 400 if copies == 2 else 200)
            for copies in (2, 1, 0, -1, "many", None)
        ),
    ],
)
def test_a_stream_counts_its_texts_and_copies_as_sglang_does(
    guard, asked, prompt, sampling, status
):
    assert answer(guard, streaming(PAYLOAD, sampling, **prompt))[0] == status
    assert len(asked) == (status == 200)


def test_copies_are_those_of_the_first_text_and_one_if_it_says_nothing(guard, asked):
    request = streaming([None, PAYLOAD], [None, *with_params(LONG)], text=["one", "two"])

    assert answer(guard, request) == (200, None)
    assert len(asked) == 1


@pytest.mark.parametrize("preferred", [{"custom_params": {"dry_base": 2}}, None])
def test_parameters_without_a_processor_are_refused_unless_the_server_prefers_them(
    guard, preferred
):
    request = streaming(None, with_params({"dry_base": 2})[0])

    status, why = answer(guard, request, preferred=preferred)

    assert status == (400 if preferred is None else 200)
    assert (why is None) == (preferred is not None)


@pytest.mark.parametrize(("wrong", "got"), [("abc", "'abc'"), (5, "5"), ([1], "list of 1")])
def test_sampling_parameters_that_are_no_object_are_refused_with_what_came(guard, wrong, got):
    assert answer(guard, streaming([PAYLOAD], [wrong])) == (
        400,
        f"sampling_params: expected an object, got {got}",
    )
    assert guard.audit.counts == {("admission", "invalid_request"): 1}


# SGLang's own keys


def answered_by(setter, params, value):
    """Return ``custom_params`` after SGLang's front end added something."""
    from sglang.srt.sampling import sampling_params

    sampling = {"custom_params": params}
    remember(getattr(sampling_params, setter), sampling, value)
    return sampling["custom_params"]


SETTERS = [
    ("set_request_reasoning_end_token_ids", [7, 8], "__sglang_reasoning_end_token_ids"),
    ("set_request_reasoning_in_grammar", True, "__sglang_reasoning_in_grammar"),
]


@pytest.mark.parametrize("payload", [None, PAYLOAD])
@pytest.mark.parametrize("key", [OWN_KEY, "__sglang_anything", "__req__"])
def test_sglangs_keys_are_refused_from_clients(guard, payload, key):
    params = {**GOOD, key: [1]}
    with pytest.raises(RequestError, match=f"'{key}' is SGLang's own; leave it out"):
        Admission(guard).admit(tokenized(payload, params), manager(), SimpleNamespace())
    assert answer(guard, streaming(payload, with_params(params)[0]))[0] == 400
    assert guard.audit.counts == {("admission", "invalid_request"): 2}


@pytest.mark.parametrize("payload", [None, PAYLOAD])
@pytest.mark.parametrize(("setter", "value", "key"), SETTERS)
def test_what_sglang_adds_goes_on_in_a_plain_dict(guard, payload, setter, value, key):
    given = GOOD if payload else {"thinking_budget": -1}
    request = tokenized(payload, answered_by(setter, given, value))
    Admission(guard).admit(request, manager(), SimpleNamespace())

    assert type(request.sampling_params.custom_params) is dict
    assert request.sampling_params.custom_params == {**given, key: value}


def test_of_both_that_sglang_adds_both_go_on(guard):
    params = GOOD
    for setter, value, _ in SETTERS:
        params = answered_by(setter, params, value)
    Admission(guard).admit(tokenized(PAYLOAD, params), manager(), SimpleNamespace())


@pytest.mark.parametrize(("setter", "value", "key"), SETTERS)
def test_what_sglang_adds_to_no_parameters_goes_on_too(setter, value, key):
    found = answered_by(setter, None, value)

    assert found == {key: value}
    check_origin(found)


def test_a_setter_gets_its_arguments_and_what_it_leaves_alone_stays_itself():
    given = []

    def leave(sampling, *args, **kwargs):
        given.append((args, kwargs))

    sampling = {"custom_params": GOOD}
    remember(leave, sampling, 1, b=2)
    assert given == [((1,), {"b": 2})]
    assert sampling["custom_params"] is GOOD

    remember(lambda sampling: sampling.update(custom_params="text"), sampling)
    assert sampling["custom_params"] == "text"


def test_as_many_keys_as_there_may_be_can_have_sglangs_among_them():
    client = {str(i): i for i in range(MAX_KEYS - 1)}
    check_origin(answered_by(SETTERS[1][0], client, True))
    full = add_own({**client, "last": 1}, EFFORT, "low")

    assert EFFORT in full
    with pytest.raises(RequestError, match=f"at most {MAX_KEYS} parameters, got {MAX_KEYS + 1}"):
        check_origin(full)


def test_a_second_key_of_ours_does_not_make_the_first_the_clients():
    check_origin(add_own(add_own({"a": 1}, EFFORT, "low"), BUDGET_FIELD, 3))


@pytest.mark.parametrize(("setter", "value", "key"), SETTERS)
@pytest.mark.parametrize("theirs", [OWN_KEY, "__sglang_reasoning_in_grammar", "__sglang_else"])
def test_a_clients_key_stays_the_clients_where_sglang_adds_its_own(
    guard, setter, value, key, theirs
):
    params = answered_by(setter, {**GOOD, theirs: value}, value)
    with pytest.raises(RequestError, match=theirs):
        Admission(guard).admit(tokenized(PAYLOAD, params), manager(), SimpleNamespace())


@pytest.mark.parametrize("value", [[[1]], {"a": {}}, math.nan, 2**70, "\ud800"])
@pytest.mark.parametrize("payload", [None, PAYLOAD])
def test_where_processes_send_each_other_flat_values_only_others_are_refused(
    guard, monkeypatch, payload, value
):
    from sglang.srt.environ import envs

    request = tokenized(payload, {"x": value})
    with (
        envs.SGLANG_USE_PICKLE_IPC.override(False),
        pytest.raises(RequestError, match="flat lists"),
    ):
        Admission(guard).admit(request, manager(), SimpleNamespace())


def test_where_processes_send_each_other_objects_the_processor_decides_on_nested_values(
    guard, asked
):
    from sglang.srt.environ import envs

    with envs.SGLANG_USE_PICKLE_IPC.override(True):
        Admission(guard).admit(tokenized(PAYLOAD, {"x": [[1]]}), manager(), SimpleNamespace())

    assert asked == [asking(custom_params={"x": [[1]]}, prompt_tokens=0)]


@pytest.mark.parametrize(
    ("payload", "params", "strict", "field"),
    [
        (PAYLOAD, GOOD, {}, "custom_logit_processor"),
        (PAYLOAD, GOOD, {"enable_strict_thinking": True}, "custom_logit_processor"),
        (None, {"thinking_budget": -1}, {}, "custom_params"),
        (None, {"thinking_budget": -1}, {"enable_strict_thinking": False}, "custom_params"),
        # SGLang reads the budget itself.
        (None, {"thinking_budget": -1}, {"enable_strict_thinking": True}, None),
    ],
)
def test_a_server_without_custom_processors_names_the_field_and_the_option(
    guard, payload, params, strict, field
):
    served = manager()
    vars(served.server_args).update(enable_custom_logit_processor=False, **strict)
    request = tokenized(payload, params)
    if field is None:
        Admission(guard).admit(request, served, SimpleNamespace())
        return
    with pytest.raises(Unsupported) as refusal:
        Admission(guard).admit(request, served, SimpleNamespace())

    assert str(refusal.value) == (
        f"{field}: expected none, as this server takes no custom logit processors; ask its "
        "operator to add --enable-custom-logit-processor"
    )


class Exits(LogitProcessor):
    def __init__(self):
        raise SystemExit("its own mistake")

    def edit(self, request, edits):
        """Do nothing."""


def test_a_class_that_fails_is_answered_500_named_and_counted(guard, monkeypatch):
    from fastapi import HTTPException

    counted = []
    monkeypatch.setattr(admission, "writing", lambda: SimpleNamespace(fail=counted.append))
    allowed = SimpleNamespace(name="m:Exits", processor=Exits, payload="p")
    monkeypatch.setattr(guard.verifier, "lookup", lambda _payload: allowed)
    with pytest.raises(HTTPException) as caught:
        Admission(guard).admit(tokenized("p", {}), manager(), SimpleNamespace())

    assert caught.value.status_code == 500
    assert caught.value.detail == (
        "Exits failed before its request began: 'SystemExit: its own mistake'"
    )
    assert counted == [Coded.of(caught.value.__cause__)]


# The three ways in


WAYS = ["tokenized", "list", "stream"]


def enter(guard, way, payload, params, rid=None):
    """Bring a request to the gate as SGLang does."""
    (sampling,) = with_params(params)
    body = streaming(payload, sampling)
    body.rid = rid
    if way == "stream":
        Admission(guard).admit_stream(manager(), body)
    elif way == "list":
        list_check(guard)(manager(), listed([payload], [sampling]))
    else:
        request = tokenized(payload, params)
        request.rid = rid
        Admission(guard).admit(request, manager(), body)


@pytest.mark.parametrize(
    ("way", "rid", "named"),
    [
        *((way, "0" * 32, "0" * 32) for way in ("tokenized", "stream")),
        *((way, "Bob", "sha256:cd9fb1e148ccd844") for way in ("tokenized", "stream")),
        ("list", None, None),
    ],
)
def test_the_line_of_a_refusal_names_the_route_and_the_request(guard, caplog, way, rid, named):
    from fastapi import HTTPException

    def refuse():
        header._scope.set({"route": SimpleNamespace(path="/generate")})
        with pytest.raises((RequestError, HTTPException)):
            enter(guard, way, PAYLOAD, BAD, rid)

    copy_context().run(refuse)

    (line,) = map(json.loads, caplog.messages)
    assert (line["endpoint"], line["rid"]) == ("/generate", named)


# What SGLang asks about a payload


def test_a_sampling_mask_is_the_business_of_the_gates_and_nothing_is_unpickled_for_it():
    assert supports_sampling_mask(EVIL)


def masked(payload, params):
    request = tokenized(payload, params)
    request.return_sampling_mask = True
    return request


FORCED = {"token_ids": [3]}
BIASED = {"bias": 1.0, "eos_token_ids": [2]}


@pytest.mark.parametrize(
    ("payload", "params"),
    [
        (PAYLOAD, {"token_ids": [1]}),
        (ForcedSequenceLogitProcessor.to_str(), FORCED),
        ("DeepseekOCRNoRepeatNGramLogitProcessor", {"ngram_size": 2, "window_size": 50}),
        ("ScheduledBiasLogitProcessor", {"token_ids": [1], "end": 5}),
        (
            "TriggerPhraseLogitProcessor",
            {"phrase_token_ids": [3], "trigger_token_ids": [4]},
        ),
    ],
)
def test_a_sampling_mask_goes_with_what_only_excludes(guard, payload, params):
    Admission(guard).admit(masked(payload, params), manager(), SimpleNamespace())


@pytest.mark.parametrize(
    ("payload", "params", "at_fault"),
    [
        ("GenLengthLogitProcessor", BIASED, "GenLengthLogitProcessor"),
        ("ScheduledBiasLogitProcessor", {"token_ids": [1], "bias": -9.0}, "ScheduledBias"),
        ("TriggerPhraseLogitProcessor", {"phrase_token_ids": [3], "before_token_ids": [4]}, "Tri"),
        (
            "ChainLogitProcessor",
            {
                "chain": ["ForcedSequenceLogitProcessor", "GenLengthLogitProcessor"],
                "0.token_ids": [3],
                **{f"1.{name}": value for name, value in BIASED.items()},
            },
            "GenLengthLogitProcessor",
        ),
    ],
)
def test_a_sampling_mask_is_refused_beside_a_bias_which_the_message_names(
    guard, payload, params, at_fault
):
    with pytest.raises(
        RequestError,
        match=(
            f"^return_sampling_mask: .* got {at_fault}.*, which also changes the relative "
            "probabilities of other tokens; leave out one of them$"
        ),
    ):
        Admission(guard).admit(masked(payload, params), manager(), SimpleNamespace())


def test_each_prompt_of_a_list_is_checked_for_its_own_sampling_mask(guard):
    sampling = {"custom_params": BIASED}
    obj = SimpleNamespace(
        custom_logit_processor=["GenLengthLogitProcessor"] * 2,
        sampling_params=[sampling] * 2,
        return_sampling_mask=[False, False],
        batch_size=2,
        max_thinking_tokens=None,
    )
    list_check(guard)(manager(), obj)
    obj.return_sampling_mask = [False, True]
    with pytest.raises(RequestError, match=r"^return_sampling_mask: "):
        list_check(guard)(manager(), obj)


# Resumed answers


def resuming(count, payload=PAYLOAD):
    request = tokenized(payload, {**GOOD, "resumed_tokens": count})
    request.input_ids = [1, 2, 3]
    return request


def test_so_many_tokens_as_the_prompt_has_can_be_resumed_beside_any_parameters(guard):
    request = resuming(3)
    Admission(guard).admit(request, manager(), SimpleNamespace())
    assert request.sampling_params.custom_params["resumed_tokens"] == 3
    for count in (4, -1, True, "2", 1.0, None):
        with pytest.raises(RequestError, match=r"^resumed_tokens: expected a whole number from 0"):
            Admission(guard).admit(resuming(count), manager(), SimpleNamespace())


@pytest.mark.parametrize("prompts", [[1, 2, 3], [[1, 2, 3], [1]], [[1], [1, 2, 3]]])
def test_too_many_resumed_tokens_are_refused_before_a_list_or_a_stream_begins(guard, prompts):
    several = isinstance(prompts[0], list)
    most = 1 if several else 3
    for count in (most, most + 1):
        sampling = {"custom_params": {**GOOD, "resumed_tokens": count}}
        obj = SimpleNamespace(
            text=None,
            input_ids=prompts,
            custom_logit_processor=PAYLOAD,
            sampling_params=sampling,
            max_thinking_tokens=None,
        )
        if several:
            obj.sampling_params = [sampling] * 2
        if count == most:
            Admission(guard).admit_stream(manager(), obj)
            continue
        from fastapi import HTTPException

        with pytest.raises(HTTPException, match="resumed_tokens: expected a whole number"):
            Admission(guard).admit_stream(manager(), obj)


def test_a_class_that_reads_sglangs_request_resumes_nothing(guard, monkeypatch):
    class Reads(LogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return logits

        @classmethod
        def parse_params(cls, custom_params, vocab_size=None):
            return cls.Params()

    allowed = SimpleNamespace(name="m:Reads", processor=Reads, payload="p")
    monkeypatch.setattr(guard.verifier, "lookup", lambda _payload: allowed)
    with pytest.raises(
        Unsupported, match=r"with Reads, which .*; use a processor that overrides edit\(\)$"
    ):
        Admission(guard).admit(resuming(1, "p"), manager(), SimpleNamespace())


MANY = {f"k{i}": i for i in range(MAX_KEYS + 1)}
TOO_MANY = (
    f"^custom_params: expected at most {MAX_KEYS} parameters, got {MAX_KEYS + 1}; send many values "
    "as a list$"
)


@pytest.mark.parametrize("payload", [None, PAYLOAD, "ChainLogitProcessor"])
def test_more_parameters_than_any_processor_has_are_refused_before_they_are_read(guard, payload):
    class Counted(dict):
        def items(self):
            raise AssertionError("they were read")

        __iter__ = keys = values = items

    with pytest.raises(RequestError, match=TOO_MANY):
        Admission(guard).admit(tokenized(payload, Counted(MANY)), manager(), SimpleNamespace())


def test_so_are_those_in_one_text_with_the_processor(guard):
    whole = wire.fold("DisallowedTokensLogitsProcessor", MANY)

    with pytest.raises(RequestError, match=TOO_MANY):
        Admission(guard).admit(tokenized(whole, None), manager(), SimpleNamespace())
    with pytest.raises(RequestError, match=TOO_MANY):
        check_shape(MANY, None)
