"""The gate in the HTTP process: a refusal here is an HTTP 400, before anything is scheduled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.errors import RequestError, Unsupported
from sglang_lp.server.versions import speculative_algorithm
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from sglang_lp.server.guard import Guard

__all__ = ["make_admit", "make_supports_sampling_mask"]


def make_admit(guard: Guard) -> Any:
    """Return the hook that runs after ``TokenizerManager._create_tokenized_object``."""

    def admit(tokenized: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
        payload = getattr(tokenized, "custom_logit_processor", None)
        if payload is None:
            return
        guard.gate = Gate.ADMISSION
        guard.vocab_size = manager.model_config.vocab_size
        guard.speculative = speculative_algorithm(manager.server_args)
        guard.tokenizer = getattr(manager, "tokenizer", None)
        sampling = tokenized.sampling_params
        if (getattr(sampling, "beam_width", None) or 1) > 1:
            raise Unsupported(
                "custom logit processors do not combine with beam search: leave out one of "
                "custom_logit_processor and beam_width"
            )
        allowed, _ = guard.admit(payload, sampling.custom_params)
        # From here on only the operator's own spelling travels.
        tokenized.custom_logit_processor = allowed.payload
        if sampling.custom_params is None:
            sampling.custom_params = {}  # without a dict SGLang passes no history

    return admit


def make_supports_sampling_mask(guard: Guard) -> Any:
    """Return the replacement for SGLang's ``supports_sampling_mask``, which would unpickle."""

    def supports_sampling_mask(serialized_processor: str) -> bool:
        try:
            processor = guard.verifier.resolve(serialized_processor)
        except RequestError:
            return False
        return issubclass(processor, DisallowedTokensLogitsProcessor)

    return supports_sampling_mask
