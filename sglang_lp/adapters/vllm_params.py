"""vLLM's ``SamplingParams`` as classes of vLLM read them, where vLLM is not installed."""

from __future__ import annotations

import copy
import enum
from typing import Any

#: Attributes that every request has.
_DEFAULTS: dict[str, Any] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": [],
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "structured_outputs": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "bad_words_token_ids": None,
    "thinking_token_budget": None,
    "repetition_detection": None,
    "watermarking": None,
    "extra_args": None,
}
_LOGPROBS = "SGLang keeps what log probabilities are asked for elsewhere"
_ENGINE = "it belongs to vLLM's engine"
#: Attributes that no request of SGLang's has, each with the reason.
_UNKNOWN = {
    "logprobs": _LOGPROBS,
    "num_logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
    "prompt_logprob_token_ids": _LOGPROBS,
    "prompt_logprob_start": _LOGPROBS,
    "logprob_token_ids": _LOGPROBS,
    "flat_logprobs": _LOGPROBS,
    "detokenize": _ENGINE,
    "output_kind": _ENGINE,
    "stream_interval": _ENGINE,
    "skip_clone": _ENGINE,
    "output_text_buffer_length": _ENGINE,
    "skip_reading_prefix_cache": _ENGINE,
    "routed_experts_prompt_start": _ENGINE,
    "trace_decode_token_ids": _ENGINE,
    "from_optional": _ENGINE,
    "update_from_generation_config": _ENGINE,
    "update_from_tokenizer": _ENGINE,
    "verify": _ENGINE,
    "logits_processors": _ENGINE,
    "truncate_prompt_tokens": _ENGINE,
    "for_sampler_warmup": _ENGINE,
    "structured_outputs": "the request has a grammar of SGLang's",
}


class SamplingType(enum.IntEnum):
    """How tokens are drawn."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class SamplingParams:
    """The parameters of a request, by vLLM's names.

    Args:
        given: The parameters that differ from vLLM's defaults.
    """

    def __init__(self, **given: Any) -> None:
        for key in given:
            if key not in _DEFAULTS and key not in _UNKNOWN:
                raise TypeError(f"SamplingParams has no {key}")
        self._eos_token_id: int | None = None
        self._all_stop_token_ids: set[int] = {*(given.get("stop_token_ids") or ())}
        self.__dict__.update({**copy.deepcopy(_DEFAULTS), **given})

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # copy and pickle ask
            raise AttributeError(attribute)
        why = _UNKNOWN.get(attribute, "vLLM 0.33 has none, either")
        raise AttributeError(f"SamplingParams.{attribute} is not known on SGLang: {why}")

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends the answer; ``None`` if it does not (``ignore_eos``)."""
        return self._eos_token_id

    @property
    def all_stop_token_ids(self) -> set[int]:
        """All tokens that end an answer, the end token among them."""
        return self._all_stop_token_ids

    @property
    def sampling_type(self) -> SamplingType:
        """How tokens are drawn."""
        if self.temperature < 1e-5:  # noqa: PLR2004 - vLLM's
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    def clone(self) -> SamplingParams:
        """Return a deep copy."""
        return copy.deepcopy(self)
