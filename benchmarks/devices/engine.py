"""Tokens a second of SGLang on a GPU: ``python -m benchmarks.devices.engine``.

SGLang runs without its kernel package (355 MB) and without cutlass: ``benchmarks.devices.kernels``
has stand-ins, SGLang's operators compute in plain torch (``SGLANG_FORCE_FUSED_OP_BACKEND``),
attention is Triton's and sampling torch's. The model has the configuration of Qwen3-0.6B and random
weights. Engines: one without the toolkit, on which requests carry nothing or SGLang's own classes,
then one with it; 1 to 256 requests at once, with short prompts and with long ones.

A figure is the faster of two calls. ``arrival_ms`` is a call of one token, whose prompts are
cached, and ``decode_ms`` a later token of a longer call. The tokens of each arm are checked.

Each engine has half of the minutes. On a GPU it starts with CUDA graphs, and again without them if
it does not come up. Each record is one line of JSON, written when it is known
(``build/engine.jsonl``); an engine that does not come up leaves its last stage and the end of its
log. The exit code is 1 if an engine did not come up or a row has wrong tokens.
``benchmarks.devices.report`` stores the records.

``--device cpu`` runs the same with one narrow layer. Packages: those of SGLang but its kernels. The
toolkit need not be installed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.devices import kernels, options
from benchmarks.devices.generating import VOCAB
from support.plugins import PROBES
from support.processes import EngineError, play
from support.settings import CPU_ARGUMENTS, environment

__all__ = ["ENGINES", "OUT", "SHAPES", "main"]

OUT = Path("build/engine.jsonl")
#: Requests at once, tokens of each prompt and tokens to generate. After long prompts few tokens are
#: generated, so that arrival weighs.
SHAPES: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "cuda": (
        *((requests, 32, 256) for requests in (1, 32, 128, 256)),
        (64, 8192, 64),
        (256, 2048, 64),
    ),
    "cpu": ((1, 32, 16), (32, 32, 16), (256, 32, 2)),
}
#: The engines, with the plugins that SGLang loads.
ENGINES = {"stock": "none", "toolkit": "sglang_lp"}
#: An engine ends this many seconds before its deadline, which kills it.
ENDS_BEFORE = 10

_QWEN3: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
}
_NARROW: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_COMMON: Mapping[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enable_custom_logit_processor": True,
}
#: Of ``Engine``.
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "cuda": {
        **_COMMON,
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "mem_fraction_static": 0.7,
        "random_seed": 1,
        "skip_server_warmup": True,
    },
    "cpu": {**CPU_ARGUMENTS, **_COMMON, "max_total_tokens": 16_384},
}
#: Without graphs of prefills, and of few numbers of requests, an engine starts in half a minute.
_GRAPHS = {
    "decode": {"bs": sorted({requests for requests, _, _ in SHAPES["cuda"]})},
    "prefill": {"backend": "disabled"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the engines and store the records; return 1 if one did not come up."""
    given = options.parse("engine", __doc__, 6.0, OUT, arguments)
    out = given.out.resolve()
    out.write_bytes(b"")
    began, failed = time.monotonic(), False
    for number, engine in enumerate(ENGINES, 1):
        until = began + number / len(ENGINES) * given.minutes * 60
        failed |= not _comes_up(engine, given.device, until, out)
    text = out.read_text()
    print(text)
    return int(failed or any(orjson.loads(line).get("wrong") for line in text.splitlines()))


def _comes_up(engine: str, device: str, until: float, out: Path) -> bool:
    """Measure an engine; return whether it came up, with CUDA graphs or without."""
    for graphs in (True, False) if device == "cuda" else (False,):
        with tempfile.TemporaryDirectory() as folder:
            job, env = _prepare(engine, device, Path(folder), graphs=graphs)
            job |= {"until": until - ENDS_BEFORE, "out": str(out)}
            seconds = max(0.0, until - time.monotonic())
            try:
                play("benchmarks.devices.generating", job, Path(folder), env, seconds)
            except EngineError as error:
                line = {"engine": engine, "cuda_graphs": graphs, "failed": str(error)}
                with out.open("ab") as file:
                    file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            else:
                return True
    return False


def _prepare(
    engine: str, device: str, folder: Path, *, graphs: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Write the model and the stand-in into a folder; return a job and the process's variables."""
    config = {**_QWEN3, **(_NARROW if device == "cpu" else {})}
    (folder / "config.json").write_bytes(orjson.dumps(config))
    kernels.write(folder)
    plugins = [ENGINES[engine], kernels.PLUGIN if device == "cuda" else "sglang_lp_cpu_rotary"]
    variables = {
        "SGLANG_PLUGINS": ",".join(plugins),
        "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
        "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
        # The tree in Rust does not know the types of torch 2.11.
        "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
        "TORCHDYNAMO_DISABLE": "1",
    }
    given: dict[str, Any] = {"model_path": str(folder), "disable_cuda_graph": not graphs}
    if graphs:
        given["cuda_graph_config"] = _GRAPHS
    job = {
        "engine": engine,
        "arguments": {**_ARGUMENTS[device], **given},
        "shapes": SHAPES[device],
    }
    return job, environment(variables, [folder, PROBES])


if __name__ == "__main__":
    sys.exit(main())
