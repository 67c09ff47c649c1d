"""One request is read alike in each form in which SGLang gives it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.reserved_keys import THOUGHT, add_own
from support.fakes.requests import Req

PAYLOAD = DisallowedTokensLogitsProcessor.to_str()
IDS = [1, 2, 3]
SENT = {
    "nothing else": {},
    "greedy": {"top_k": 1},
    "beams": {"beam_width": 3},
    "a grammar": {"json_schema": "{}"},
    "stops": {"stop": ["a"], "stop_token_ids": [5, 6]},
    "a stop by a pattern": {"stop_regex": "a"},
    "no end": {"ignore_eos": True},
}


@pytest.mark.parametrize("sampling", SENT.values(), ids=SENT)
@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("thought", [False, True])
def test_the_three_forms_of_a_request_are_read_alike(sampling, reasoning, thought):
    given = {"token_ids": [7]}
    given = add_own(given, THOUGHT, value=True) if thought else given
    asks = {"return_sampling_mask": True, "return_logprob": True, "require_reasoning": reasoning}
    renamed = {"stop": "stop_strs", "stop_regex": "stop_regex_strs"}
    normal = {renamed.get(name, name): value for name, value in sampling.items()}
    normal |= {"max_new_tokens": 9}
    text = Intake.of_text(
        (PAYLOAD, given),
        {**sampling, "max_new_tokens": 9},
        masked=True,
        logprobs=True,
        prompt_tokens=3,
        reasoning=reasoning,
    )
    tokenized = SimpleNamespace(
        custom_logit_processor=PAYLOAD,
        sampling_params=SimpleNamespace(custom_params=given, **normal),
        input_ids=IDS,
        **asks,
    )
    req = Req(PAYLOAD, given, prompt=IDS, **asks)
    vars(req.sampling_params).update(normal)

    assert text == Intake.of_tokenized(tokenized) == Intake.of_req(req, None)
    assert text.reasoning is (reasoning and not thought)
