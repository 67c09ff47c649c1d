"""Admission refuses requests that a server cannot honour, on SGLang's own argument objects.

No server is started for it. SGLang answers HTTP 400
to the ``ValueError`` that comes out of admission; ``test_faults`` sees that on a server.
"""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import msgspec
import pytest

from sglang_lp.builtins import (
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    LoopBreakerLogitProcessor,
)
from sglang_lp.errors import Unsupported
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy

pytestmark = pytest.mark.engine

PROCESSORS = {
    DisallowedTokensLogitsProcessor: {"token_ids": [5]},
    ForcedSequenceLogitProcessor: {"token_ids": [5]},
    LoopBreakerLogitProcessor: {"max_pattern_size": 3, "min_count": 2},
}
each_processor = pytest.mark.parametrize("processor", PROCESSORS)


@pytest.fixture(scope="module")
def admitted(tiny):
    """Return a function that lets a request pass admission of a server with some arguments."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs

    def admitted(processor, params, *, beam_width=None, **arguments):
        manager = SimpleNamespace(
            server_args=ServerArgs(
                model_path=str(tiny), device="cpu", enable_custom_logit_processor=True, **arguments
            ),
            model_config=SimpleNamespace(vocab_size=1024, hf_eos_token_id={2}),
            tokenizer=None,
        )
        sampling_params = SamplingParams(custom_params=params)
        if beam_width is not None:
            sampling_params.beam_width = beam_width
        fields = msgspec.structs.fields(TokenizedGenerateReqInput)
        request = TokenizedGenerateReqInput(
            **{field.name: None for field in fields if field.required}
            | {"input_ids": array("q", [7]), "sampling_params": sampling_params},
            custom_logit_processor=processor and processor.to_str(),
        )
        Admission(Guard(Policy.default())).admit(request, manager, SimpleNamespace())
        return request

    return admitted


@each_processor
def test_a_server_without_speculative_decoding_takes_all(admitted, processor):
    request = admitted(processor, PROCESSORS[processor])
    assert request.custom_logit_processor == processor.to_str()


@each_processor
@pytest.mark.parametrize(
    "algorithm", ["EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "NEXTN", "DFLASH", "DSPARK"]
)
def test_an_algorithm_with_which_processors_are_exact_takes_all(admitted, processor, algorithm):
    request = admitted(processor, PROCESSORS[processor], speculative_algorithm=algorithm)
    assert request.custom_logit_processor == processor.to_str()


@each_processor
def test_an_algorithm_that_refuses_processors_itself_is_named(admitted, processor):
    with pytest.raises(Unsupported, match=r"\(UNO\).*SGLang itself refuses") as refusal:
        admitted(processor, PROCESSORS[processor], speculative_algorithm="UNO")
    assert isinstance(refusal.value, ValueError)


def test_a_request_without_a_processor_passes_whatever_the_algorithm(admitted):
    assert admitted(None, None, speculative_algorithm="UNO").custom_logit_processor is None


def test_beam_search_is_named(admitted):
    with pytest.raises(Unsupported, match=r"^beam_width: expected 1 with LoopBreaker"):
        admitted(LoopBreakerLogitProcessor, {"action": "end"}, beam_width=2)
