"""Requests share nothing that a class can change: each gets arguments, lists and dicts of its own.

Every class here forces the tokens of its ``token_ids`` one after the other, and takes apart
whatever it was handed: the list, the dict, the prompt, the parameters of vLLM or SGLang.
"""

import math
from copy import deepcopy

import pytest
import torch

from sglang_lp._engine.history.attached import attach_row
from sglang_lp.adapters import EngineSettings, adapt, as_processor, load
from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.params import Parameters
from sglang_lp.policy.adapt import Adapt
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.guard import Found, Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.testing import Batch, Played, decode
from sglang_lp.trust import Policy

VOCAB = 32
PROMPT = [2, 3]
FORCED = [5, 6, 7]
STEPS = len(FORCED)


def flat(histories):
    return torch.zeros(len(histories), VOCAB)


def only(row, token_id):
    row.fill_(-math.inf)
    row[token_id] = 0.0
    return row


def devour(value):
    """Take a value apart, however deep."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            devour(one)
        value.clear()


class Devours:
    """Keeps a copy of its arguments, and takes the arguments apart."""

    def __init__(self, token_ids, **others):
        self.left = [*token_ids]
        devour([token_ids, others])

    def next(self, row):
        return only(row, self.left.pop(0)) if self.left else row


class OfTransformers(Devours):
    def __call__(self, input_ids, scores):
        input_ids.zero_()
        return self.next(scores[0])[None]


class OfDynamo(Devours):
    def __call__(self, input_ids, logits):
        self.next(logits)
        devour(input_ids)


class OfVllmRequest(Devours):
    def __call__(self, prompt_ids, output_ids, row):
        devour([prompt_ids, output_ids])
        return self.next(row)


def v1():
    """Return a V1 class that is told of each request with everything that vLLM tells."""

    class OfVllmV1(load("vllm.v1.sample.logits_processor", "LogitsProcessor", "test")):
        def __init__(self, vllm_config, device, is_pin_memory):
            self.rows = {}

        @classmethod
        def validate_params(cls, params):
            devour(params.extra_args)

        def is_argmax_invariant(self):
            return False

        def update_state(self, batch_update):
            for index, params, prompt, output in batch_update.added if batch_update else ():
                assert prompt == PROMPT
                self.rows[index] = [*params.extra_args["token_ids"]][len(output) :]
                devour([params.extra_args, prompt, output])
                params.all_stop_token_ids.clear()

        def apply(self, logits):
            for index, left in self.rows.items():
                only(logits[index], left.pop(0))
            return logits

    return OfVllmV1


def v1_by_request():
    adapter = load("vllm.v1.sample.logits_processor", "AdapterLogitsProcessor", "test")

    class OfVllmAdapter(adapter):
        def is_argmax_invariant(self):
            return False

        def new_req_logits_processor(self, params):
            made = OfVllmRequest([*params.extra_args["token_ids"]])
            devour(params.extra_args)
            return made

    return OfVllmAdapter


def v2():
    module = "vllm.v1.worker.gpu.sample.logits_processor"

    class OfVllmV2(load(module, "LogitsProcessor", "test")):
        def __init__(self, vllm_config, req_states):
            super().__init__(vllm_config, req_states)
            self.rows = {}

        @classmethod
        def validate_params(cls, params):
            devour(params.extra_args)

        def add_request(self, req_idx, sampling_params):
            self.rows[req_idx] = [*sampling_params.extra_args["token_ids"]]
            devour(sampling_params.extra_args)
            return True

        def apply_staged_writes(self):
            pass

        def apply(self, logits, ctx):
            for row, slot in zip(logits, ctx.expanded_idx_mapping.tolist(), strict=True):
                only(row, self.rows[slot].pop(0))
            return logits

    return OfVllmV2


class OfSglang:
    """SGLang's own contract: the parameters of each row at each step."""

    def __call__(self, logits, custom_param_list):
        for row, params in zip(logits, custom_param_list, strict=True):
            only(row, params["token_ids"].pop(0))
        return logits


class OfAuthor(LogitProcessor):
    """A class of this toolkit whose schema has a list and a dict."""

    class Params(Parameters, frozen=True):
        token_ids: list[int]
        more: dict[str, int] = {}  # noqa: RUF012 - msgspec makes a new one each time

    def start(self, request):
        left = [*request.params.token_ids]
        devour([request.params.token_ids, request.params.more])
        return left

    def advance(self, request, token_ids):
        del request.state[: len(token_ids)]

    def edit(self, request, edits):
        edits.force(request.state[0])


class OfAuthorDense(LogitProcessor):
    """Forces the tokens by computing whole rows."""

    Params = OfAuthor.Params

    def __call__(self, logits, custom_param_list=None):
        return OfSglang()(logits, custom_param_list)


CLASSES = {
    "transformers": lambda: adapt(OfTransformers, "transformers"),
    "dynamo": lambda: adapt(OfDynamo, "dynamo"),
    "vllm-request": lambda: adapt(OfVllmRequest, "vllm-request"),
    "vllm-v1": lambda: adapt(v1()),
    "vllm-v1 by request": lambda: adapt(v1_by_request()),
    "vllm-v2": lambda: adapt(v2()),
    "sglang": lambda: as_processor(OfSglang),
    "author": lambda: OfAuthor,
    "author, whole rows": lambda: OfAuthorDense,
}


@pytest.fixture(params=CLASSES)
def cls(request):
    found = CLASSES[request.param]()
    if hasattr(found, "begin"):
        found.begin(EngineSettings(vocab_size=VOCAB, max_requests=8, max_length=64))
    return found


def make_guard(found):
    """Return a guard that allows one class."""
    guard = Guard(Policy())
    guard.server.vocab_size = VOCAB
    guard._look_up = lambda _payload: Found("its payload", "it", as_processor(found))
    return guard


def admit(guard, given):
    """Return the servings and own fields, as the scheduler's gate gets them."""
    runs = guard._look_up("it").runs
    decided = guard._decide(Intake("it", deepcopy(given)), runs, deepcopy(given), 0)
    return guard._make(decided, None)


def play(made, given):
    """Return a request with its row."""
    servings, own = made
    played = Played(None, deepcopy(own or given), PROMPT)
    attach_row(played.custom_params, servings)
    return played


def test_clients_and_copies_with_equal_parameters_answer_alike(cls):
    guard, given = make_guard(cls), {"token_ids": FORCED}
    copies = [play(admit(guard, given), given) for _ in range(3)]
    assert decode(Batch(), flat, copies, STEPS) == [FORCED] * 3

    later = play(admit(guard, given), given)
    assert decode(Batch(), flat, [later], STEPS) == [FORCED]


def test_in_a_chain_too(cls):
    chain = ChainLogitProcessor.limited_to(lambda _name: cls)
    guard, given = make_guard(chain), {"chain": ["m:It"], "0.token_ids": FORCED}
    for _ in range(2):
        copies = [play(admit(guard, given), given) for _ in range(2)]
        assert decode(Batch(), flat, copies, STEPS) == [FORCED] * 2


def test_a_request_that_joins_others_is_told_to_its_object_as_it_was(cls):
    # When a V1 object takes a request over from another object, its calls have the same arguments.
    guard, given = make_guard(cls), {"token_ids": FORCED}
    early, late = (play(admit(guard, given), given) for _ in range(2))
    batch = Batch()
    for running in ([early], [late], [early, late]):
        decode(batch, flat, running, 1)
    assert early.output + late.output == FORCED[:2] * 2


@pytest.mark.parametrize("found", [OfTransformers, OfDynamo, OfVllmRequest])
def test_the_operators_own_arguments_stay_as_they_are(found):
    given = {"token_ids": [*FORCED], "deep": {"er": [1]}}
    before = deepcopy(given)
    interface = {OfTransformers: "transformers", OfDynamo: "dynamo"}.get(found, "vllm-request")
    cls = adapt(found, interface, given)
    cls.begin(EngineSettings(vocab_size=VOCAB))
    guard = make_guard(cls)
    for _ in range(2):
        assert (
            decode(Batch(), flat, [play(admit(guard, {}), {}) for _ in range(2)], STEPS)
            == [FORCED] * 2
        )
    assert given == before


def test_the_operators_arguments_survive_the_trial_at_admission():
    name = f"{__name__}:OfTransformers"
    entry = Adapt(name=name, interface="transformers", arguments={"token_ids": [*FORCED]})
    guard = Guard(Policy(adapt=(entry,)))
    for number in range(2):  # each is tried, as their parameters differ
        guard.admit(Intake(name, {"deep": [number]}))
    assert guard._look_up(name).runs.constructor.make({}, None).left == FORCED
    assert entry.arguments == {"token_ids": FORCED}
