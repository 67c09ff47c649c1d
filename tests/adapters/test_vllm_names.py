"""Names that vLLM's processor classes import and read exist, or raise an error with the name."""

import ast
import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

from sglang_lp.adapters import EngineSettings, adapt, load
from sglang_lp.adapters.vllm_config import make_params
from sglang_lp.adapters.vllm_names import vllm_names
from sglang_lp.adapters.vllm_params import _DEFAULTS, _UNKNOWN, SamplingParams
from sglang_lp.errors import InvalidParameter, PolicyError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import Batch, Played, decode
from support.models import tiny_model

VOCAB = 32
ENGINE = EngineSettings(vocab_size=VOCAB, max_length=64, eos_token_id=1, eos_token_ids=(1, 2))

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed: its own names are used"
)


def flat(histories):
    logits = torch.zeros(len(histories), VOCAB)
    logits[:, 9] = 1.0
    return logits


def sampling(**given):
    from sglang.srt.sampling.sampling_params import SamplingParams

    params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 20, **given})
    params.normalize(None)
    return params


#: Scripts with the imports of vLLM's own examples, those inside functions included.
SCRIPTS = {
    "v1": """
import torch
from vllm import LLM, SamplingParams
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, RequestLogitsProcessor,
)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

asked = [SamplingParams(temperature=0.0, extra_args={"token": 5}), SamplingParams(n=2)]

class Script(LogitsProcessor):
    def __init__(self, vllm_config: VllmConfig, device, is_pin_memory):
        self.rows = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update: BatchUpdate | None):
        from vllm.v1.sample.logits_processor.builtin import process_dict_updates as late

        late(self.rows, batch_update, lambda params, _, __: params.extra_args["token"])

    def apply(self, logits):
        from vllm.utils.torch_utils import async_tensor_h2d

        for row, token in self.rows.items():
            logits[row] = float("-inf")
            logits[row, async_tensor_h2d([token], logits.device, torch.long)] = 0.0
        return logits

def main():
    LLM(model="any", logits_processors=[Script])

if __name__ == "__main__":
    main()
""",
    "v2": """
import numpy as np
import torch
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.utils.gpu_sync_debug import gpu_sync_allowed
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext, LogitsProcessor, LogitsProcRequestState,
)

class Script(LogitsProcessor):
    def __init__(self, vllm_config, req_states: LogitsProcRequestState):
        from vllm.tokenizers import cached_tokenizer_from_config

        assert vllm_config.speculative_config is None
        self.tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        self.tokens = np.zeros(req_states.max_num_reqs, dtype=np.int64)

    def add_request(self, req_idx, sampling_params: SamplingParams):
        self.tokens[req_idx] = sampling_params.extra_args["token"]
        return True

    def apply(self, logits, ctx: LogitsContext):
        with gpu_sync_allowed():
            wanted = async_tensor_h2d(self.tokens[ctx.idx_mapping_np], logits.device)
        logits[:] = float("-inf")
        return logits.scatter(1, wanted[:, None], 0.0)
""",
}


@pytest.fixture(params=SCRIPTS)
def script(request, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"script_of_{request.param}"
    (tmp_path / f"{name}.py").write_text(SCRIPTS[request.param])
    yield name
    sys.modules.pop(name, None)


def test_scripts_with_the_imports_of_vllms_examples_load_and_run(script):
    cls = adapt(load(script, "Script", "test"))
    cls.begin(ENGINE)
    played = [Played(cls, {"token": token}, [3]) for token in (5, 6)]

    assert decode(Batch(), flat, played, 3) == [[5] * 3, [6] * 3]
    with pytest.raises(ImportError):
        importlib.import_module("vllm")


def test_vllms_engine_says_that_it_is_not_here(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "whole_script.py").write_text(SCRIPTS["v1"])
    main = load("whole_script", "main", "test")
    with pytest.raises(NotImplementedError, match=r"vllm\.LLM: SGLang serves here"):
        main()


@pytest.mark.parametrize(
    ("imports", "says"),
    [
        ("from vllm.utils import flashinfer", "cannot import name 'flashinfer' from 'vllm.utils'"),
        ("import vllm.platforms", r"No module named 'vllm\.platforms'"),
    ],
)
def test_a_name_that_is_missing_is_named(imports, says, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacks_a_name.py").write_text(imports)
    with pytest.raises(PolicyError, match=says):
        load("lacks_a_name", "Any", "adapt[0]")


def test_the_tokenizer_of_the_settings_is_the_served_ones(tmp_path):
    from sglang_lp.adapters.vllm_config import make_config

    path = str(tiny_model.make(tmp_path / "tiny"))
    with vllm_names():
        from vllm.tokenizers import cached_tokenizer_from_config

        found = cached_tokenizer_from_config(
            make_config(EngineSettings(tokenizer=path)).model_config
        )
        none = cached_tokenizer_from_config(make_config(EngineSettings()).model_config)
    assert found.eos_token_id == tiny_model.EOS
    assert none is None


@pytest.mark.parametrize(
    ("given", "end", "every", "stops"),
    [
        ({}, 1, {1, 2}, [2]),
        ({"stop_token_ids": [7]}, 1, {1, 2, 7}, [2, 7]),
        ({"stop_token_ids": [1]}, 1, {1, 2}, [1, 2]),
        ({"ignore_eos": True, "stop_token_ids": [7]}, None, {1, 2, 7}, [7]),
    ],
)
def test_stop_tokens_are_those_of_vllm(given, end, every, stops):
    params = make_params({}, sampling(**given), ENGINE)

    assert (params.eos_token_id, params.all_stop_token_ids) == (end, every)
    assert params.stop_token_ids == stops


def test_what_a_request_says_is_read_by_vllms_names():
    given = sampling(n=2, no_stop_trim=True)
    given.stop_strs = ["end"]  # which takes a tokenizer to normalize
    params = make_params({}, given, ENGINE)

    assert (params.n, params.stop, params.include_stop_str_in_output) == (2, ["end"], True)
    assert (params.bad_words, params.bad_words_token_ids) == ([], None)
    assert params.sampling_type == 0
    assert params.clone().__dict__ == params.__dict__
    assert params.structured_outputs is None


@pytest.mark.parametrize(
    ("attribute", "why"),
    [
        ("logprobs", "log probabilities"),
        ("output_kind", "vLLM's engine"),
        ("structured_outputs", "has a grammar of SGLang's"),
        ("best_of", "vLLM 0.33 has none, either"),
    ],
)
def test_what_no_request_says_is_an_error_that_names_it(attribute, why):
    params = make_params({}, sampling(regex="a"), ENGINE)
    with pytest.raises(AttributeError, match=rf"SamplingParams\.{attribute} is not known .*{why}"):
        getattr(params, attribute)


def test_no_parameter_shares_a_list_with_the_defaults():
    SamplingParams().stop.append("a")
    assert _DEFAULTS["stop"] == []
    with pytest.raises(TypeError, match="SamplingParams has no best_of"):
        SamplingParams(best_of=2)


#: vLLM's source distribution, unpacked.
SOURCE = Path(os.environ.get("VLLM_SOURCE", ".cache/vllm"))
#: Where it has its examples: 0.33 and 0.12.
EXAMPLES = ("examples/features/logits_processor", "examples/offline_inference/logits_processor")


def test_every_public_attribute_of_vllms_parameters_is_there_or_says_why_not():
    file = SOURCE / "vllm" / "sampling_params.py"
    if not file.exists():
        pytest.skip("no vllm/sampling_params.py in VLLM_SOURCE, vLLM's source distribution")
    classes = (one for one in ast.parse(file.read_text()).body if isinstance(one, ast.ClassDef))
    (found,) = (one.body for one in classes if one.name == "SamplingParams")
    names = [one.target.id for one in found if isinstance(one, ast.AnnAssign)]
    names += [one.name for one in found if isinstance(one, ast.FunctionDef)]
    public = {name for name in names if not name.startswith("_")}

    assert len(public) > 30
    assert {n for n in public if not hasattr(SamplingParams(), n)} <= {*_UNKNOWN}


@pytest.mark.parametrize(
    ("file", "kind", "answer"),
    [
        ("custom", "DummyLogitsProcessor", [5, 5, 5]),
        ("custom_req", "WrappedPerReqLogitsProcessor", [5, 5, 5]),
        ("custom_req_init", "WrappedPerReqLogitsProcessor", [9, 9, 9]),  # works on CUDA only
        ("dry", "DryState", [9, 9, 9]),
    ],
)
def test_vllms_own_examples_load_and_run_unmodified(file, kind, answer, monkeypatch):
    found = [SOURCE / folder for folder in EXAMPLES if (SOURCE / folder / f"{file}.py").exists()]
    if not found:
        pytest.skip(f"no example {file}.py in VLLM_SOURCE, vLLM's source distribution")
    monkeypatch.syspath_prepend(found[0])
    sys.modules.pop(file, None)
    cls = adapt(load(file, kind, "test"))
    given = {"dry_multiplier": 0.01} if file == "dry" else {"target_token": 5}
    cls.fit_params(cls.parse_params(given), ServedModel())
    wrong = {"dry_multiplier": -1.0} if file == "dry" else {"target_token": "a"}
    with pytest.raises(InvalidParameter, match="the class refuses them"):
        cls.fit_params(cls.parse_params(wrong), ServedModel())
    cls.begin(ENGINE)

    assert decode(Batch(), flat, [Played(cls, given, [3, 9])], 3) == [answer]
