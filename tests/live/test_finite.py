"""No token of a row that a request's own fields make NaN, infinite or empty reaches its client."""

from __future__ import annotations

import pytest

from sglang_lp.builtins import AllowedTokensLogitProcessor
from support.models.tiny_model import FREQUENT
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

VOCAB = 1024
ALL = [*range(VOCAB)]
#: Each alone makes a row NaN, infinite or empty, before processors or after them.
FIELDS = {
    "a temperature that is infinite": {"temperature": 1e300},
    "a temperature that only float64 holds": {"temperature": 1e39},
    "a bias that is infinite": {"temperature": 1, "logit_bias": {"5": 1e39}},
    "biases that leave no token": {"logit_bias": dict.fromkeys(map(str, ALL), -1e39)},
    "end tokens that leave no token": {"min_new_tokens": 3, "stop_token_ids": ALL},
}


def asked(name, processor=None, params=None, **sampling):
    request = body([5, 7, 9], processor, params, max_new_tokens=6, **sampling)
    request["sampling_params"] |= FIELDS[name]
    return request


@on_servers("decided")
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.parametrize("name", FIELDS)
def test_a_row_that_is_not_finite_ends_its_request_before_its_token(
    server, name, is_limited, copies
):
    limits = (AllowedTokensLogitProcessor, {"token_ids": [5, 300, 301]}) if is_limited else ()
    request = asked(name, *limits, n=copies)
    beside = body([5, 7], max_new_tokens=30)
    before = server.post("/generate", beside).output_ids

    refused, kept = server.at_once([request, beside])
    assert (refused.status, kept.output_ids) == (400, before), refused.body
    events = server.stream("/generate", request)
    if events.status == 200:
        assert all(not event.get("output_ids") for event in events.events), events.events
        assert "400" in str(events.events[-1])
    else:
        assert events.status == 400
    assert FREQUENT[0] not in kept.output_ids


@on_servers("decided")
@pytest.mark.parametrize("copies", [1, 3])
def test_a_penalty_that_divides_by_nearly_nothing_lifts_no_ban(server, copies):
    # It divides only tokens that the answer has, so that the first rows are finite.
    request = body([5, 7, 9], max_new_tokens=30, n=copies)
    request["sampling_params"] |= {"temperature": 1e-6, "repetition_penalty": 1e-6}
    reply = server.stream("/generate", request)

    assert reply.status == 200
    assert reply.events
    for event in reply.events:
        assert FREQUENT[0] not in event.get("output_ids", [])


@on_servers("ngram chains, no overlap", "eagle chains")
@pytest.mark.parametrize("name", ["a bias that is infinite", "biases that leave no token"])
def test_so_it_is_in_a_verify_step(server, name):
    request = asked(name, AllowedTokensLogitProcessor, {"token_ids": [5, 300, 301]})
    beside = body([5, 7], AllowedTokensLogitProcessor, {"token_ids": [8]}, max_new_tokens=9)

    refused, kept = server.at_once([request, beside])

    assert (refused.status, kept.output_ids) == (400, [8] * 9), refused.body
