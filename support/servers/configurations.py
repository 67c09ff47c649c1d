"""Servers of the tests: the arguments that each adds to ``CPU_ARGUMENTS``, and its variables.

- ``PLUGIN``: servers that schedule in different ways.
- ``DRAFTING``: those of them that also draft.
- ``RANKS``: servers that share a model between processes.
- ``ADAPTED``: servers with LoRA adapters.
- ``STOCK``: SGLang without this toolkit's plugin.
- ``decided``, ``reasoning``: an operator decides for requests, or limits thinking.
- ``decided as on a gpu``: tensor operations decide whether tokens are forced.
- ``WATERMARKED``: servers with a watermark key.
- ``tokenizer workers``: several HTTP processes.

Models have the names of :mod:`support.models.draft_models`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from sglang_lp.server.startup.workers import can_be_guarded
from support.cpu import chains, deciding, lora, speculation, strict
from support.models.lora_models import RANK
from support.plugins import foreseeing
from support.servers.server import SGLANG
from support.watermarks import GREEN, TOURNAMENT

#: Allows the processors of :mod:`support.processors.recording`.
POLICY = Path(__file__).with_name("policy.toml")


def _decided() -> Path:
    """Return the policy of ``decided.toml``, on SGLang 0.5.20 without complete answers.

    Its grammars have a form with which such a server does not start.
    """
    path = Path(__file__).with_name("decided.toml")
    if version("sglang") != "0.5.20":
        return path
    older = Path(tempfile.gettempdir(), "sglang-lp-0.5.20", path.name)
    older.parent.mkdir(exist_ok=True)
    older.write_text(path.read_text().partition("[structured]")[0])
    return older


#: Decides for requests, see ``tests/live/test_decided.py``.
DECIDED = _decided()
#: Has a ceiling on thinking, see ``tests/live/test_reasoning.py``.
REASONING = Path(__file__).with_name("reasoning.toml")

Settings = tuple[Mapping[str, Any], Mapping[str, str]]
#: How a program of its own starts a server.
OWN_PROGRAM = (sys.executable, "-m", "support.servers.own_program")

#: Few enough tokens that concurrent requests are retracted, with prefill in chunks of a few.
_SQUEEZED = {
    "grammar_backend": "xgrammar",
    "chunked_prefill_size": 16,
    "max_total_tokens": 512,
    "schedule_conservativeness": 0.01,
}
#: One list for each process.
_CORES = "0|1"
#: SGLang takes gloo where it finds no NCCL; its GPT-2 does not run on two ranks, its Llama does.
_RANKS = {"tp_size": 2, "model_path": "llama"}
#: Chunks of a prompt are on their way in both of the batches.
_STAGES = {"pp_size": 2, "model_path": "llama", "chunked_prefill_size": 16}
RANKS_VARIABLES = {
    **speculation.VARIABLES,
    "SGLANG_NCCL_SO_PATH": "none",
    "SGLANG_CPU_OMP_THREADS_BIND": _CORES,
}
#: SGLang keeps room for the draft of each request that may run.
_ROOM = {"max_running_requests": 32}
_NGRAM = {**_ROOM, "speculative_algorithm": "NGRAM"}
_TREES = {
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 2,
    "speculative_num_draft_tokens": 6,
}
_EAGLE = {
    **_ROOM,
    "model_path": "llama",
    "speculative_algorithm": "EAGLE",
    "speculative_draft_model_path": "eagle",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
_EAGLE3 = {
    **_ROOM,
    "model_path": "llama",
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "eagle3",
    **_TREES,
}
#: Verify blocks of six tokens.
_CHAINS = {
    **_ROOM,
    "model_path": "llama",
    "speculative_draft_attention_backend": "torch_native",
    "grammar_backend": "xgrammar",
}
_DFLASH = {
    **_CHAINS,
    "speculative_algorithm": "DFLASH",
    "speculative_draft_model_path": "dflash",
}
#: Writes over drafts at random.
_GUESSING = {**speculation.VARIABLES, foreseeing.VARIABLE: "1"}
_DSPARK = {
    **_CHAINS,
    "speculative_algorithm": "DSPARK",
    "speculative_draft_model_path": "dspark",
}
#: Room for the base model and two adapters in one batch.
_LORA = {
    "enable_lora": True,
    "lora_backend": "torch_native",
    "lora_target_modules": "all",
    "max_lora_rank": RANK,
    "max_loras_per_batch": 3,
}
_LORA_VARIABLES = {**speculation.VARIABLES, **lora.VARIABLES}
SERVERS: Mapping[str, Settings] = {
    "default": ({"grammar_backend": "xgrammar"}, {}),
    "no overlap, no radix cache": (
        {
            "disable_overlap_schedule": True,
            "disable_radix_cache": True,
            "allow_auto_truncate": True,
        },
        {"SGLANG_USE_PICKLE_IPC": "0"},
    ),
    "squeezed": (_SQUEEZED, {}),
    "data parallel": ({"dp_size": 2}, {"SGLANG_CPU_OMP_THREADS_BIND": _CORES}),
    "ngram trees, mixed chunks": (
        {
            **_NGRAM,
            "grammar_backend": "xgrammar",
            "speculative_num_draft_tokens": 8,
            "speculative_ngram_max_bfs_breadth": 4,
            "chunked_prefill_size": 16,
            "enable_mixed_chunk": True,
        },
        speculation.VARIABLES,
    ),
    "ngram chains, no overlap": (
        {
            **_NGRAM,
            "speculative_num_draft_tokens": 4,
            "speculative_ngram_max_bfs_breadth": 1,
            "disable_overlap_schedule": True,
            "grammar_backend": "xgrammar",
        },
        _GUESSING,
    ),
    "standalone trees, squeezed": (
        {
            **_SQUEEZED,
            **_ROOM,
            "max_total_tokens": 768,
            "speculative_algorithm": "STANDALONE",
            "speculative_draft_model_path": "noisy",
            **_TREES,
        },
        speculation.VARIABLES,
    ),
    "eagle chains": ({**_EAGLE, "grammar_backend": "xgrammar"}, speculation.VARIABLES),
    "eagle chains, data parallel": (
        {**_EAGLE, "dp_size": 2},
        {**_GUESSING, "SGLANG_CPU_OMP_THREADS_BIND": _CORES},
    ),
    "eagle3 trees": (_EAGLE3, speculation.VARIABLES),
    "dflash": (_DFLASH, speculation.VARIABLES),
    "dflash, blind": (_DFLASH, {**speculation.VARIABLES, chains.BLIND: "1"}),
    "dflash, squeezed": (
        {**_DFLASH, **_SQUEEZED, "max_total_tokens": 768},
        speculation.VARIABLES,
    ),
    "dflash, data parallel": (
        {**_DFLASH, "dp_size": 2},
        {**_GUESSING, "SGLANG_CPU_OMP_THREADS_BIND": _CORES},
    ),
    "dspark": (_DSPARK, speculation.VARIABLES),
    "dspark, ragged, squeezed": (
        {**_DSPARK, **_SQUEEZED, "max_total_tokens": 768},
        {**_GUESSING, "SGLANG_RAGGED_VERIFY_MODE": "compact"},
    ),
    "lora": ({**_LORA, "model_path": "llama"}, _LORA_VARIABLES),
    "lora, eagle chains": ({**_LORA, **_EAGLE}, _LORA_VARIABLES),
    "two ranks": ({**_RANKS, "grammar_backend": "xgrammar"}, RANKS_VARIABLES),
    "two ranks, ngram trees, squeezed": (
        {
            **_SQUEEZED,
            "max_total_tokens": 768,
            **_RANKS,
            **_NGRAM,
            "speculative_num_draft_tokens": 8,
            "speculative_ngram_max_bfs_breadth": 4,
        },
        RANKS_VARIABLES,
    ),
    "two ranks, eagle chains": ({**_EAGLE, **_RANKS}, RANKS_VARIABLES),
    "two ranks, eagle3 trees": ({**_EAGLE3, **_RANKS}, RANKS_VARIABLES),
    "two ranks, data parallel": (
        {**_RANKS, "dp_size": 2},
        {**RANKS_VARIABLES, "SGLANG_CPU_OMP_THREADS_BIND": "|".join([_CORES] * 2)},
    ),
    "two stages": ({**_STAGES, "grammar_backend": "xgrammar"}, RANKS_VARIABLES),
    "two stages, two ranks": (
        {**_STAGES, **_RANKS},
        {**RANKS_VARIABLES, "SGLANG_CPU_OMP_THREADS_BIND": "|".join([_CORES] * 2)},
    ),
    "decided": (
        {"enable_metrics": True, "served_model_name": "tiny", "grammar_backend": "xgrammar"},
        {"SGLANG_LP_POLICY": str(DECIDED)},
    ),
    "reasoning": (
        {
            "reasoning_parser": "qwen3",
            "tool_call_parser": "qwen25",
            "grammar_backend": "xgrammar",
            "served_model_name": "tiny",
        },
        {"SGLANG_LP_POLICY": str(REASONING)},
    ),
    "strict thinking": (
        {
            "model_path": "demo",
            "reasoning_parser": "qwen3",
            "grammar_backend": "xgrammar",
            "enable_strict_thinking": True,
            "served_model_name": "demo",
        },
        {
            "SGLANG_MAX_THINK_TOKENS": "32",
            "SGLANG_PLUGINS": f"sglang_lp,sglang_lp_probe,{strict.NAME}",
        },
    ),
    "decided as on a gpu": ({}, {deciding.VARIABLE: "1"}),
    "green lists": ({**_SQUEEZED, "enable_metrics": True}, {}),
    "tournament": ({"enable_metrics": True, "grammar_backend": "xgrammar"}, {}),
    "tournament, ngram trees, no overlap": (
        {
            **_NGRAM,
            "speculative_num_draft_tokens": 8,
            "speculative_ngram_max_bfs_breadth": 4,
            "disable_overlap_schedule": True,
        },
        speculation.VARIABLES,
    ),
    "tokenizer workers": (
        {"tokenizer_worker_num": 2},
        {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"},
    ),
    "stock": ({}, {"SGLANG_PLUGINS": "sglang_lp_probe"}),
    "stock, eagle chains": (
        _EAGLE,
        {**speculation.VARIABLES, "SGLANG_PLUGINS": f"sglang_lp_probe,{speculation.NAME}"},
    ),
}
STOCK = ("stock", "stock, eagle chains")
ADAPTED = ("lora", "lora, eagle chains")
#: Shows processors drafts that are not those, so that tests can be seen to fail.
BLIND = "dflash, blind"
#: Server -> what starts it, where that is not SGLang's own command.
STARTED_BY = {"no overlap, no radix cache": OWN_PROGRAM}
STRICT = "strict thinking"
RANKS = tuple(name for name in SERVERS if name.startswith(("two ranks", "two stages")))
APART = "decided as on a gpu"
#: Server -> the scheme and the other values of its watermark key, see
#: ``tests/live/test_watermarks.py``.
WATERMARKED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "green lists": ("kgw", GREEN),
    "tournament": ("synthid", TOURNAMENT),
    "tournament, ngram trees, no overlap": ("synthid", TOURNAMENT),
}
#: Servers whose processes import SGLang themselves, as an operator's do: one of the usual kind, one
#: that is started by another program, and those whose processes have to agree with each other.
SPAWNED = frozenset({"default", *STARTED_BY, *RANKS, "tokenizer workers"})
_OTHERS = {
    *(*STOCK, *ADAPTED, *RANKS, *WATERMARKED, BLIND, STRICT, APART),
    *("decided", "reasoning", "tokenizer workers"),
}
PLUGIN = tuple(name for name in SERVERS if name not in _OTHERS)
DRAFTING = tuple(name for name in PLUGIN if "speculative_algorithm" in SERVERS[name][0])
#: Servers of every test run: trees and chains, drafts from n-grams and from the model's own state.
#: The others differ only in the drafter, and take as long again (``make test SUITE=drafts``).
_ALWAYS = frozenset({"ngram trees, mixed chunks", "eagle chains", "two ranks", "two stages"})


def command(name: str) -> Sequence[str | Path]:
    """Return the command that starts a server."""
    return STARTED_BY.get(name, SGLANG)


def on_servers(*names: str, always: bool = False) -> pytest.MarkDecorator:
    """Run the tests of a module on each of these servers.

    Args:
        names: Keys of ``SERVERS``.
        always: Whether to run it in every test run, for a module that takes seconds.
    """
    servers = [pytest.param(name, marks=() if always else _marks(name)) for name in names]
    return pytest.mark.parametrize("server", servers, indirect=True, scope="session")


def _marks(name: str) -> Sequence[pytest.MarkDecorator]:
    if name == "tokenizer workers" and not can_be_guarded():
        return (pytest.mark.skip("this SGLang's tokenizer workers load no plugin"),)
    further = name in {*ADAPTED, *RANKS, STRICT} or "speculative_algorithm" in SERVERS[name][0]
    return (pytest.mark.drafts,) if further and name not in _ALWAYS else ()
