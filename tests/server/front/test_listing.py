"""The list of a server's processors and profiles: all that a request may name, nothing else."""

import asyncio

import httpx
import orjson
import pytest
from fastapi import FastAPI

from sglang_lp.adapters import as_processor
from sglang_lp.policy.sections import Chosen, Profile
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.front.listing import add_list, list_allowed
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy
from sglang_lp.wire.names import LIST_PATH

ALLOWED = "support.processors.recording:Census"
BAN = Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [1]})


class SecretRuleLogitProcessor(LogitProcessor):
    """A rule of ``[[always]]`` that the policy allows nowhere else."""

    def edit(self, request, edits):
        edits.ban([1])


POLICIES = {
    "default": Policy.default(),
    "all kinds": Policy(
        allow=(ALLOWED,),
        stock="allow",
        profiles={
            "support": Profile(processors=(BAN,), may_set=("token_ids",)),
            "fixed": Profile(processors=(BAN,)),
        },
        always=(Chosen(processor=f"{__name__}:SecretRuleLogitProcessor"),),
    ),
    "profiles only": Policy(
        builtins=False, stock="deny", profiles={"fixed": Profile(processors=(BAN,))}
    ),
}
policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def asked(guard, *, guarded):
    app = FastAPI()
    add_list(app, guard, lambda: guarded)

    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get(LIST_PATH)

    return asyncio.run(ask())


@policies
def test_a_request_may_name_all_that_is_listed_with_these_parameters(policy):
    guard = Guard(policy)
    listed = list_allowed(guard)

    for one in listed["processors"]:
        processor = as_processor(guard.verifier.resolve(one["name"]))
        if one["parameters"] is not None:
            names = [parameter["name"] for parameter in one["parameters"]]
            assert names == [*processor.Params.__struct_fields__]
    assert all(guard.rules.has_profile(one["name"]) for one in listed["profiles"])


@policies
def test_everything_that_is_allowed_is_listed(policy):
    guard = Guard(policy)
    listed = list_allowed(guard)

    assert len(listed["processors"]) == len(guard.verifier.allowed)
    assert {one["name"] for one in listed["profiles"]} == {*policy.profiles}


@policies
def test_no_rule_for_every_request_is_listed(policy):
    text = orjson.dumps(list_allowed(Guard(policy))).decode()
    assert "Secret" not in text
    assert "always" not in text


def test_the_list_says_which_parameters_a_request_must_and_a_profile_may_set():
    listed = list_allowed(Guard(POLICIES["all kinds"]))
    by_name = {one["name"]: one for one in listed["processors"]}

    assert by_name["ChainLogitProcessor"]["parameters"] == [{"name": "chain", "required": True}]
    assert not any(one["required"] for one in by_name["DRYLogitProcessor"]["parameters"])
    assert {"name": "support", "may_set": ["token_ids"]} in listed["profiles"]
    assert ALLOWED in by_name


@pytest.mark.parametrize(("guarded", "status"), [(True, 200), (False, 503)])
def test_the_answer_says_whether_the_server_is_guarded(guarded, status):
    guard = Guard(Policy.default())
    answer = asked(guard, guarded=guarded)

    assert answer.status_code == status
    assert answer.json() == {"guarded": guarded, **list_allowed(guard)}


@pytest.mark.parametrize("enabled", [True, False])
def test_the_list_says_whether_the_server_runs_processors(enabled):
    guard = Guard(Policy.default())
    guard.server.runs_processors = enabled
    assert list_allowed(guard)["enabled"] is enabled
