"""The answer that the operator wants: its room, against counting tokens, and its least length."""

from array import array

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_lp.links import serve
from sglang_lp.policy import Rules
from sglang_lp.policy.sections import Ceiling, Chosen
from sglang_lp.processor import Recording
from sglang_lp.request import Request
from sglang_lp.served_model import ServedModel
from sglang_lp.trust import Policy, Verifier
from support.asked import asked_for
from support.models.vocabularies import one_token_a_byte

VOCAB = 12
START, END, NEW_LINE = 1, 2, 3
THINK = "ThinkingBudgetLogitProcessor"
SERVED = ServedModel(None, VOCAB)
tokens = st.sampled_from([START, END, NEW_LINE, 5, 6, 7])


def counted(prompt, output):
    """Return the tokens after the last block, or since it opened with a minus sign."""
    inside, since = False, 0
    for place, token_id in enumerate([*prompt, *output]):
        if token_id == (END if inside else START):
            inside, since = not inside, place + 1
    rest = len(prompt) + len(output) - since
    return -rest - 1 if inside else rest


@given(
    prompt=st.lists(tokens, max_size=5),
    script=st.lists(tokens, min_size=60, max_size=60),
    limit=st.integers(1, 50),
    room=st.integers(1, 30),
    budget=st.integers(0, 60),
    own=st.fixed_dictionaries(
        {},
        optional={
            "closing_token_ids": st.lists(st.sampled_from([5, 8, 9]), min_size=1, max_size=6),
            "new_line_token_id": st.just(NEW_LINE),
            "min_thinking_tokens": st.integers(1, 20),
        },
    ),
    resumed=st.integers(0, 5),
)
def test_an_answer_has_the_room_that_is_left_for_it(  # noqa: PLR0917 - a request has this many parts
    prompt, script, limit, room, budget, own, resumed
):
    resumed = min(resumed, len(prompt))
    ids = {"thinking_start_token_id": START, "thinking_end_token_id": END}
    least = min(own.get("min_thinking_tokens", 0), budget)
    params = {**ids, **own, "min_thinking_tokens": least, "thinking_budget": budget}
    rules = Rules(
        Policy(
            defaults=Chosen(processor=THINK, params=ids),
            ceilings={"thinking_budget": Ceiling(at_most=100)},
            effort={"answer_room": room},
        ),
        Verifier(Policy()).resolve,
    )
    rules.fit(SERVED)
    decided = rules.decide(asked_for(THINK, params, resumed=resumed), SERVED)
    assert decided.resumed == resumed
    closing = len(own.get("closing_token_ids", own.keys() & {"new_line_token_id"})) + 1
    assume(limit >= room + closing)  # else there is no such room

    processor, decided_params, *_ = serve(decided.links[0], limit + resumed)
    request = Request(decided_params)
    begun = len(prompt) - resumed
    request.prompt_ids, request.output_ids = prompt[:begun], array("q")
    request.state = processor.start(request)
    if resumed:
        request.output_ids.extend(prompt[begun:])
        processor.advance(request, prompt[begun:])
    output, wake, edits = [], 0, Recording(VOCAB)
    for wish in script[:limit]:
        request.position = len(request.output_ids)
        if request.position >= wake:
            edits = Recording(VOCAB)
            processor.edit(request, edits)
            wake = edits.wake or 0
        elif not edits.holds:
            edits = Recording(VOCAB)
        banned = {token_id for ids in edits.banned for token_id in ids}
        token_id = wish if wish not in banned else 5
        token_id = token_id if edits.forced is None else edits.forced
        output.append(token_id)
        request.output_ids.append(token_id)
        processor.advance(request, [token_id])
    assert counted(prompt, output) >= room or counted(prompt, output) == len(prompt + output)


@pytest.mark.parametrize("at_limit", ["close", "stop"])
@pytest.mark.parametrize("own", [{}, {"min_answer_tokens": 5, "eos_token_ids": [9]}])
def test_the_operator_guarantees_an_answer_whatever_a_request_asks_for(own, at_limit):
    ids = {"thinking_start_token_id": START, "thinking_end_token_id": END}
    rules = Rules(
        Policy(defaults=Chosen(processor=THINK, params=ids), effort={"min_answer_tokens": 2}),
        Verifier(Policy()).resolve,
    )
    served = ServedModel(None, VOCAB, (10, 11))
    rules.fit(served)
    if at_limit == "stop":
        own = {"at_limit": "stop", "thinking_budget": 4}

    for asked in (asked_for(THINK, {**ids, **own}), asked_for(None, own)):
        params = rules.decide(asked, served).links[0].params
        if at_limit == "stop":  # which asks for an answer that ends in its block
            assert (params.min_answer_tokens, params.eos_token_ids) == (0, ())
        else:
            assert params.min_answer_tokens == max(2, own.get("min_answer_tokens", 0))
            assert params.eos_token_ids == (*own.get("eos_token_ids", ()), 10, 11)
            assert (*params.finder.eos,) == params.eos_token_ids


def test_a_guaranteed_answer_alone_adds_a_budget_to_every_request():
    served = ServedModel(one_token_a_byte("<think>", "</think>"), 400, (300,))
    rules = Rules(Policy(effort={"min_answer_tokens": 1}), Verifier(Policy()).resolve)
    rules.fit(served)

    decided = rules.decide(asked_for(None), served)

    assert decided.links[0].processor.__name__ == THINK
    assert decided.links[0].params.thinking_budget is None
    assert decided.links[0].params.eos_token_ids == (300,)
