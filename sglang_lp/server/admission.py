"""The gate in the HTTP process: a refusal here is an HTTP 400, before anything is scheduled."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.errors import RequestError, shown
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from sglang_lp.server.guard import Guard

__all__ = ["make_admit", "make_admit_stream", "make_supports_sampling_mask"]


def make_admit(guard: Guard) -> Any:
    """Return the hook that runs after ``TokenizerManager._create_tokenized_object``."""

    def admit(tokenized: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
        payload = getattr(tokenized, "custom_logit_processor", None)
        if payload is None:
            return
        guard.learn(Gate.ADMISSION, manager)
        sampling = tokenized.sampling_params
        beam_width = getattr(sampling, "beam_width", None)
        # A temperature of 0 has become a top_k of 1.
        sampled = getattr(sampling, "top_k", None) != 1
        admitted = guard.admit(payload, sampling.custom_params, beam_width, sampled=sampled)
        # From here on only the operator's own spelling travels.
        tokenized.custom_logit_processor = admitted.payload
        if sampling.custom_params is None:
            sampling.custom_params = {}  # without a dict SGLang passes no history

    return admit


def make_admit_stream(guard: Guard) -> Any:
    """Return the hook that runs before ``TokenizerManager.create_abort_task``.

    A streaming response calls that when it is made, before its status is sent; what is refused
    later could only be said in the stream, after an HTTP 200.
    """

    def admit_stream(manager: Any, obj: Any) -> None:
        if obj.custom_logit_processor is None:
            return
        guard.learn(Gate.ADMISSION, manager)
        payloads, samplings = obj.custom_logit_processor, obj.sampling_params
        if isinstance(payloads, list) and _is_single(obj):
            payloads = [payloads]  # a list is no payload, and refused as such
        if not isinstance(samplings, list):
            samplings = [samplings] * (len(payloads) if isinstance(payloads, list) else 1)
        if not isinstance(payloads, list):
            payloads = [payloads] * len(samplings)  # as SGLang will
        try:
            for payload, sampling in zip(payloads, samplings, strict=False):
                if payload is not None:
                    merged = {**(manager.preferred_sampling_params or {}), **_object(sampling)}
                    guard.admit(
                        payload,
                        _custom_params(obj, merged),
                        merged.get("beam_width"),
                        sampled=merged.get("temperature") != 0 and merged.get("top_k") != 1,
                    )
        except RequestError as error:
            from fastapi import HTTPException

            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error

    return admit_stream


def _is_single(obj: Any) -> bool:
    """Tell whether SGLang will take this for one request and not for a list of them."""
    if obj.text is not None:
        return isinstance(obj.text, str)
    return bool(obj.input_ids) and isinstance(obj.input_ids[0], int)


def _object(sampling: Any) -> dict[str, Any]:
    if isinstance(sampling, dict | None):
        return sampling or {}
    raise RequestError(f"sampling_params: expected an object, got {shown(sampling)}")


def _custom_params(obj: Any, sampling: dict[str, Any]) -> Any:
    """Return ``custom_params`` as SGLang will make them of the request's fields."""
    custom_params = sampling.get("custom_params")
    if obj.max_thinking_tokens is not None and isinstance(custom_params or {}, dict):
        custom_params = {**(custom_params or {}), "thinking_budget": obj.max_thinking_tokens}
    return custom_params


def make_supports_sampling_mask(guard: Guard) -> Any:
    """Return the replacement for SGLang's ``supports_sampling_mask``, which would unpickle."""

    def supports_sampling_mask(serialized_processor: str) -> bool:
        try:
            processor = guard.verifier.resolve(serialized_processor)
        except RequestError:
            return False
        return issubclass(processor, DisallowedTokensLogitsProcessor)

    return supports_sampling_mask
