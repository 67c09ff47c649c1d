"""The gate in the HTTP process: a refusal here is an HTTP 400, before anything is scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import ProcessorFault, RequestError, Unsupported, shown
from sglang_lp.flat_json import read_flat
from sglang_lp.server.front.bounds import check_copies, check_entries
from sglang_lp.server.front.efforts import read_generate
from sglang_lp.server.front.header import ran
from sglang_lp.server.front.meta_info import expect
from sglang_lp.server.front.placeholders import standing_in
from sglang_lp.server.gate.reserved_keys import ROUTED, check_origin
from sglang_lp.server.gate.routed_form import unfold
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Admitted, Guard

__all__ = ["make_admit", "make_admit_list", "make_admit_stream", "supports_sampling_mask"]


def make_admit(guard: Guard) -> Any:
    """Return the hook that runs when SGLang has tokenized a request."""

    def admit(tokenized: Any, manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
        with standing_in(manager, obj):
            if _admit_one(guard, manager, tokenized):
                expect(obj)

    return admit


def _admit_one(guard: Guard, manager: Any, tokenized: Any) -> bool:
    """Check one request, and tell whether a processor runs on it."""
    sampling: Any = getattr(tokenized, "sampling_params", None)
    custom_params = getattr(sampling, "custom_params", None)
    payload = getattr(tokenized, "custom_logit_processor", None)
    decides = not guard.rules.is_empty and sampling is not None
    if payload is None and not custom_params and not decides:
        ran(())
        return False
    payload, custom_params = _unfold(guard, payload, custom_params)
    # A temperature of 0 has become a top_k of 1.
    sampled = getattr(sampling, "top_k", None) != 1
    beam_width = getattr(sampling, "beam_width", None)
    limit = getattr(sampling, "max_new_tokens", None)
    if payload is not None or decides:
        check_entries([custom_params])
    masked = bool(getattr(tokenized, "return_sampling_mask", False))
    logprobs = bool(getattr(tokenized, "return_logprob", False))
    tokens = len(getattr(tokenized, "input_ids", None) or ())
    admitted = _admit(
        guard,
        manager,
        payload,
        custom_params,
        beam_width,
        sampled=sampled,
        limit=limit,
        masked=masked,
        logprobs=logprobs,
        prompt_tokens=tokens,
    )
    if admitted is not None:
        with guard.counting():
            check_copies(tokens, getattr(sampling, "n", None) or 1)
    if payload is not None:
        # From here on only the operator's own spelling travels.
        tokenized.custom_logit_processor = payload if admitted is None else admitted.payload
        custom_params = custom_params or {}  # without a dict SGLang passes no history
    if type(custom_params) is not dict and isinstance(custom_params, dict):
        custom_params = {**custom_params}
    sampling.custom_params = custom_params
    return admitted is not None


def make_admit_list(guard: Guard) -> Any:
    """Return the hook that runs before SGLang takes up a list.

    It sends the first of a list to the scheduler before it looks at the second.
    """

    def admit_list(manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
        # SGLang has normalized the request; one for embeddings has no processors.
        payloads = getattr(obj, "custom_logit_processor", None)
        if payloads is None and hasattr(obj, "max_thinking_tokens"):
            samplings = obj.sampling_params
            if not guard.rules.is_empty or any(map(_is_routed, samplings)):
                payloads = [None] * len(samplings)
        if payloads is not None:
            size = obj.batch_size
            samplings = obj.sampling_params
            if min(len(payloads), len(samplings)) < size:
                raise RequestError(
                    f"custom_logit_processor: expected {size} entries, and as many of "
                    f"sampling_params, got {len(payloads)} and {len(samplings)}; give one for each "
                    "prompt"
                )
            pairs = [*zip(payloads[:size], samplings[:size], strict=True)]
            with standing_in(manager, obj):
                _admit_all(guard, manager, obj, pairs, getattr(obj, "parallel_sample_num", 1))

    return admit_list


def make_admit_stream(guard: Guard) -> Any:
    """Return the hook that runs when a streaming response is made.

    Its status is not sent yet; what is refused later could only be said in the stream, after an
    HTTP 200.
    """

    def admit_stream(manager: Any, obj: Any) -> None:
        if hasattr(obj, "is_single"):
            return  # SGLang has normalized it, so it was admitted before its first answer
        if guard.rules.reads_effort:
            read_generate(manager, obj)
        payloads, samplings = obj.custom_logit_processor, obj.sampling_params
        if payloads is None and not samplings and guard.rules.is_empty:
            ran(())
            return
        if isinstance(payloads, list) and _is_single(obj):
            payloads = [payloads]  # a list is no payload, and refused as such
        if not isinstance(samplings, list):
            samplings = [samplings] * (len(payloads) if isinstance(payloads, list) else _texts(obj))
        if not isinstance(payloads, list):
            payloads = [payloads] * len(samplings)  # as SGLang will
        try:
            pairs = [*zip(payloads, samplings, strict=False)]
            with standing_in(manager, obj):
                _admit_all(guard, manager, obj, pairs, _copies(samplings))
        except RequestError as error:
            from fastapi import HTTPException

            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error

    return admit_stream


def _admit_all(
    guard: Guard, manager: Any, obj: Any, pairs: Sequence[tuple[Any, Any]], copies: int
) -> None:
    """Check the requests of a list: payloads, and sampling parameters as SGLang got them.

    Many share one object, which is checked once.
    """
    listed: dict[tuple[int, int], tuple[Any, dict[str, Any], Any]] = {}
    texts = []
    for payload, sampling in pairs:
        key = id(payload), id(sampling)
        if key not in listed:
            merged = {**(manager.preferred_sampling_params or {}), **_object(sampling)}
            found, custom_params = _unfold(guard, payload, _custom_params(obj, merged))
            listed[key] = found, merged, custom_params
        found, _, custom_params = listed[key]
        runs = found is not None or not guard.rules.is_empty
        texts.append(custom_params if runs else None)
    # First: what is too much is not looked through either.
    marks = check_entries(texts, copies)
    admitted = set()
    masks = _listed(getattr(obj, "return_sampling_mask", None))
    shows = _listed(getattr(obj, "return_logprob", None))
    lengths = _lengths(obj)
    for index, ((payload, sampling), mark) in enumerate(zip(pairs, marks, strict=True)):
        found, merged, custom_params = listed[id(payload), id(sampling)]
        beam_width, limit = merged.get("beam_width"), merged.get("max_new_tokens")
        sampled = merged.get("temperature") != 0 and merged.get("top_k") != 1
        # What runs nothing has no mark of its own.
        own = id(merged) if found is None else mark
        masked, logprobs = bool(masks[index % len(masks)]), bool(shows[index % len(shows)])
        tokens = lengths[index % len(lengths)]
        same = id(found), own, id(beam_width), id(limit), sampled, masked, logprobs, tokens
        if same not in admitted:
            admitted.add(same)
            _admit(
                guard,
                manager,
                found,
                custom_params,
                beam_width,
                sampled=sampled,
                limit=limit,
                masked=masked,
                logprobs=logprobs,
                prompt_tokens=tokens,
            )


def _listed(wanted: Any) -> list[Any]:
    """Return what each of a list wants, or what all of it does."""
    return wanted if wanted and isinstance(wanted, list) else [wanted]


def _unfold(guard: Guard, payload: Any, custom_params: Any) -> tuple[Any, Any]:
    """Return processor and parameters of a request, without what the front end kept them in.

    Raises:
        RequestError: Refused.
    """
    guard.gate = Gate.ADMISSION
    with guard.counting():
        check_origin(custom_params)
        return unfold(payload, custom_params)


def _is_routed(sampling: Any) -> bool:
    """Tell whether a request named its processor in its metadata."""
    custom_params = sampling.get("custom_params") if isinstance(sampling, dict) else None
    return isinstance(custom_params, dict) and ROUTED in custom_params


def _admit(  # noqa: PLR0913 - a request has this many parts
    guard: Guard,
    manager: Any,
    payload: Any,
    custom_params: Any,
    beam_width: object,
    *,
    sampled: bool,
    limit: object,
    **more: Any,
) -> Admitted | None:
    """Check one request; return what runs its processor, if it names one.

    Raises:
        RequestError: Refused.
        HTTPException: The processor failed: HTTP 500, as SGLang answers where a scheduler does.
    """
    try:
        with guard.counting():
            if payload is not None:
                _check_enabled(manager)
            if not _pickles():
                read_flat(custom_params)
        if payload is None and guard.rules.is_empty:
            ran(())
            return None
        guard.learn(Gate.ADMISSION, manager)
        known = limit if isinstance(limit, int) else None
        admitted = guard.admit(
            payload, custom_params, beam_width, sampled=sampled, limit=known, **more
        )
    except ProcessorFault as error:
        from fastapi import HTTPException

        raise HTTPException(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
    ran(admitted.names if admitted is not None else ())
    return admitted


def _check_enabled(manager: Any) -> None:
    """Refuse where SGLang calls no processor; it looks for one in its own field only.

    Raises:
        Unsupported: With what to do.
    """
    if not getattr(manager.server_args, "enable_custom_logit_processor", True):
        raise Unsupported(
            "custom_logit_processor: expected none, as this server takes no custom logit "
            "processors; ask its operator to add --enable-custom-logit-processor"
        )


def _pickles() -> bool:
    """Tell whether SGLang's processes send each other any object, and not only flat ones."""
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_USE_PICKLE_IPC.get())


def _is_single(obj: Any) -> bool:
    """Tell whether SGLang will take this for one request and not for a list of them."""
    if obj.text is not None:
        return isinstance(obj.text, str)
    return bool(obj.input_ids) and isinstance(obj.input_ids[0], int)


def _texts(obj: Any) -> int:
    """Return how many requests SGLang will make of this one, copies apart."""
    return 1 if _is_single(obj) else max(1, len(obj.text or obj.input_ids or ()))


def _lengths(obj: Any) -> list[int | None]:
    """Return how many tokens each prompt has, or that of all; ``None`` where it is not known."""
    prompts = getattr(obj, "input_ids", None)
    if not prompts or not isinstance(prompts, list):
        return [None]
    if isinstance(prompts[0], int):
        return [len(prompts)]
    return [len(one) if isinstance(one, list) else None for one in prompts]


def _copies(samplings: Sequence[Any]) -> int:
    """Return how many copies SGLang will make of each; what is no number is its to refuse."""
    copies = samplings[0].get("n") if samplings and isinstance(samplings[0], dict) else 1
    return copies if isinstance(copies, int) and copies > 1 else 1


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


def supports_sampling_mask(_serialized_processor: str) -> bool:
    """Stand where SGLang would unpickle a payload: the guard tells, at admission and after it."""
    return True
