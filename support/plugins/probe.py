"""An SGLang plugin for tests: records and changes requests on a server.

It records for each step whether its sampling is delayed, and for each verify step whether SGLang
sees its processors. It changes requests on their way to the
scheduler, after the gate in the HTTP process.
"""

from __future__ import annotations

import os
import pathlib
import pickle
from typing import Any

from sglang_lp import wire
from support.processors.recording import write
from support.settings import RECORD


class _Touches:
    """Unpickled, it makes a file: a harmless stand-in for any other code."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        record = os.environ.get(RECORD, "elsewhere")
        return pathlib.Path.touch, (pathlib.Path(f"{record}.code-has-run"),)  # type: ignore[return-value]


_DISALLOWED = wire.payload_for("sglang_lp.builtins", "DisallowedTokensLogitsProcessor")
_LOOPS = wire.payload_for("sglang_lp.builtins", "LoopBreakerLogitProcessor")

#: Beginning of a request's id -> the payload and the parameters that the scheduler gets.
SMUGGLED: dict[str, tuple[str | None, Any]] = {
    "remote code": (wire.encode(pickle.dumps(_Touches())), {}),
    "a name alone": (wire.payload_for("os", "abort"), {}),
    "not hex": ('{"callable": "not hex"}', {}),
    "empty": ("", {}),
    "missing parameter": (_DISALLOWED, {}),
    "no parameters": (_DISALLOWED, None),
    "outside the vocabulary": (_DISALLOWED, {"token_ids": [1 << 30]}),
    "own key": (_DISALLOWED, {"token_ids": [5], "__sglang_reasoning_in_grammar": 1}),
    "own key, no processor": (None, {"__sglang_reasoning_end_token_ids": [[1]]}),
    "beam search": (_LOOPS, {"action": "end"}),
}

#: Beginning of a request's id -> fields that the scheduler gets: sampling parameters, and others.
OUT_OF_RANGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({"temperature": 1e39}, {}),
    "repetition_penalty": ({"repetition_penalty": 1e-310}, {}),
    "logit_bias": ({"logit_bias": {"5": 1e39}, "top_k": 5}, {}),
    "logit_bias of no token": ({"logit_bias": {"4096": 1}}, {}),
    "top_k": ({"top_k": 2**31}, {}),
    "stop_token_ids": ({"stop_token_ids": {4096}, "min_new_tokens": 2}, {}),
    "stop_regex": ({"stop_regex_strs": [r"^(\s?\w?.?)+\x01$"], "stop_regex_max_len": 99}, {}),
    "top_logprobs_num": ({}, {"return_logprob": True, "top_logprobs_num": 4096}),
    "token_ids_logprob": ({}, {"return_logprob": True, "token_ids_logprob": [4096]}),
    "token_indices_to_pool": ({}, {"token_indices_to_pool": [10**9]}),
}


def install() -> None:
    """Hook the step; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        _after_step,
        HookType.AFTER,
    )
    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request",
        _smuggle,
        HookType.BEFORE,
    )


def _smuggle(_manager: Any, tokenized: Any) -> None:
    """Give a request whose id says so another payload and other parameters."""
    smuggled = SMUGGLED.get(str(tokenized.rid).partition(":")[0])
    if smuggled is not None:
        tokenized.custom_logit_processor, tokenized.sampling_params.custom_params = smuggled
    sampling, others = OUT_OF_RANGE.get(str(tokenized.rid).partition(":")[0], ({}, {}))
    for target, fields in ((tokenized.sampling_params, sampling), (tokenized, others)):
        for name, value in fields.items():
            setattr(target, name, value)


def _after_step(
    result: Any,
    _worker: Any,
    batch: Any = None,
    forward_batch: Any = None,
    pp_proxy_tensors: Any = None,  # noqa: ARG001 - SGLang's signature
    is_verify: bool = False,  # noqa: FBT001, FBT002 - as above
    *_args: Any,
    **_kwargs: Any,
) -> None:
    if is_verify:
        info = (forward_batch if batch is None else batch).sampling_info
        write("verify", processors=info is not None and info.has_custom_logit_processor)
    if batch is not None and batch.reqs:
        write(
            "step",
            rids=[req.rid for req in batch.reqs],
            delayed=result.delay_sample_func is not None,
        )
