"""Requests that continue a cut answer as if it had not been cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_lp.client.attachment import Attachment, copy_mapping
from sglang_lp.errors import RequestError, shown
from sglang_lp.params import RESUMED

__all__ = ["resume"]

#: Sampling parameters that SGLang applies to the tokens of one request only, with the values that
#: switch them off: penalties, grammars, and a regex that may match over the cut.
_ANEW: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "stop_regex": (None, "", []),
}


def resume(
    attachment: Attachment, request: Mapping[str, Any], *answers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body for ``POST /generate`` that continues a cut answer.

    The processor counts the tokens so far as generated tokens, and continues as if the answer had
    not been cut. The report covers only the new tokens.

    Args:
        attachment: The attachment of the first request.
        request: The body of the first request without the processor, with the ``input_ids`` of
            one prompt and ``max_new_tokens``. The tokens so far are subtracted from
            ``max_new_tokens`` and ``min_new_tokens``.
        answers: The parts of the answer, oldest first.

    Raises:
        RequestError: Token ids or ``max_new_tokens`` are missing; ``max_new_tokens`` is reached;
            the answer was cut where a string of ``stop`` may have begun, or has no ``text`` to
            tell; or SGLang would start something of the request anew: a penalty, a grammar,
            ``stop_regex``.
    """
    body = copy_mapping(request, "request")
    prompt_ids = body.get("input_ids")
    if not isinstance(prompt_ids, list) or not all(type(one) is int for one in prompt_ids):
        raise RequestError(
            f"input_ids: expected the token ids of one prompt, got {shown(prompt_ids)}; tokenize "
            "the prompt, because its text may become other tokens with the answer behind it"
        )
    so_far = [token_id for answer in answers for token_id in _tokens(answer)]
    sampling = copy_mapping(body.get("sampling_params") or {}, "sampling_params")
    if so_far:
        _refuse_anew(sampling)
        _refuse_begun_stop(sampling.get("stop"), answers)
        _subtract(len(so_far), sampling)
    body |= {"input_ids": [*prompt_ids, *so_far], "sampling_params": sampling}
    body = attachment.generate_body(body)
    body["sampling_params"]["custom_params"][RESUMED] = len(so_far)
    return body


def _tokens(answer: Mapping[str, Any]) -> list[int]:
    token_ids = answer.get("output_ids")
    if not isinstance(token_ids, list):
        raise RequestError(
            f"output_ids: expected those of an answer of /generate, got {shown(token_ids)}"
        )
    return token_ids


def _refuse_anew(sampling: Mapping[str, Any]) -> None:
    """Refuse sampling parameters that SGLang would apply as if the answer began at the cut."""
    for name, off in _ANEW.items():
        if sampling.get(name) not in off:
            raise RequestError(
                f"{name}: expected a request without it, got {shown(sampling[name])}; SGLang "
                "starts it anew after a cut, so generate the answer again from its prompt"
            )


def _refuse_begun_stop(stop: Any, answers: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to resume inside a stop string: SGLang looks for it in the new tokens only."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list | tuple) or not all(isinstance(one, str) for one in stops):
        raise RequestError(f"stop: expected a text or a list of texts, got {shown(stop)}")
    texts = [answer.get("text") for answer in answers] if any(stops) else []
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(
            "text: expected it in each answer of a request with stop, got an answer without; it "
            "tells whether the answer was cut inside a stop string"
        )
    text = "".join(map(str, texts))
    for one in stops:
        # U+FFFD: the cut is inside a character, which a stop string may begin with.
        if text.endswith(("\ufffd", *(one[:length] for length in range(1, len(one))))):
            raise RequestError(
                f"stop: expected an answer that was not cut inside a stop string, got one that "
                f"ends where {shown(one)} may have begun; SGLang looks for it in the new tokens "
                "only, so generate the answer again from its prompt"
            )


def _subtract(tokens: int, sampling: dict[str, Any]) -> None:
    """Subtract the tokens so far from the limits of a request, in place."""
    if "max_new_tokens" not in sampling:
        raise RequestError(
            "max_new_tokens: expected the limit of the whole answer, got none; SGLang counts its "
            "default of 128 anew in each request, so set it in sampling_params"
        )
    most, least = sampling["max_new_tokens"], sampling.get("min_new_tokens")
    if most is not None:
        if type(most) is not int or most <= tokens:
            raise RequestError(
                f"max_new_tokens: expected a whole number above the {tokens} tokens so far, "
                f"got {shown(most)}; an answer with all of its tokens is complete"
            )
        sampling["max_new_tokens"] = most - tokens
    if least is not None:
        if type(least) is not int:
            raise RequestError(f"min_new_tokens: expected a whole number, got {shown(least)}")
        sampling["min_new_tokens"] = max(0, least - tokens)
