"""Reads a request and its answer, in all of SGLang's forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang_lp import wire
from sglang_lp.errors import RequestError, shown
from sglang_lp.wire.names import REPORT

__all__ = ["Exchange", "Likely", "read_exchange"]

#: No model has so many tokens. A replay makes a row of logits up to the largest id.
_MAX_ID = 1_000_000

_NO_OUTPUT = (
    "the answer has no token ids: POST /generate gives output_ids; ask /v1/completions and "
    '/v1/chat/completions for them with "return_token_ids": true'
)
_NO_PROMPT = (
    "the token ids of the prompt are unknown: give input_ids in the request, or its text and a "
    'tokenizer; ask /v1/chat/completions for them with "return_token_ids": true'
)


#: Fields for the limit of an answer's tokens, by endpoint.
_LIMITS = "max_new_tokens", "max_completion_tokens", "max_tokens", "max_output_tokens"


class Likely(NamedTuple):
    """One of the likeliest tokens of a step in the answer, after all edits.

    Attributes:
        text: Text or name of the token.
        logprob: Logarithm of its probability.
    """

    text: str
    logprob: float


class Exchange(NamedTuple):
    """A request and its answer.

    Attributes:
        payload: The request's processor, as a payload or a name, or ``None``.
        custom_params: The parameters, with the phases that the report tells; may be empty.
        prompt_ids: Token ids of the prompt.
        output_ids: Token ids of the answer.
        text: The text of the answer, or ``None``.
        likely: The ``top_logprobs`` of each token; may be empty.
        finish: Finish reason, in words; may be empty.
        notes: Contradictions between request and answer, in words.
        limit: Number of tokens after which the answer ends, if known.
    """

    payload: str | None
    custom_params: Mapping[str, Any]
    prompt_ids: list[int]
    output_ids: list[int]
    text: str | None = None
    likely: Sequence[Sequence[Likely]] = ()
    finish: str = ""
    notes: Sequence[str] = ()
    limit: int | None = None


def read_exchange(request: Any, answer: Any, tokenizer: Any = None, choice: int = 0) -> Exchange:
    """Read the parts of a request and its answer that a replay needs.

    Args:
        request: The body of ``POST /generate``, of ``/v1/completions`` or
            ``/v1/chat/completions``, or the arguments of ``Engine.generate``.
        answer: JSON, the engine's dict, or an object of the ``openai`` client.
        tokenizer: The model's tokenizer, to encode the prompt if the answer has no prompt ids.
        choice: Index of the answer, if there are several.

    Raises:
        RequestError: A field is missing or has another type; says how to get it.
    """
    if hasattr(answer, "model_dump"):
        answer = answer.model_dump()
    if not isinstance(request, Mapping):
        raise RequestError(f"the request: expected a JSON object, got {shown(request)}")
    chosen, count = _chosen(answer, choice)
    given = _one_of(request, choice, count)
    meta = chosen.get("meta_info")
    meta = meta if isinstance(meta, Mapping) else {}
    output_ids = _first(chosen, "output_ids", "token_ids", "response_token_ids")
    if output_ids is None:
        raise RequestError(_NO_OUTPUT)
    prompt_ids = _prompt_ids(given, chosen, meta, tokenizer)
    custom_params = given["custom_params"]
    if custom_params is not None and not isinstance(custom_params, Mapping):
        raise RequestError(f"custom_params: expected an object, got {shown(custom_params)}")
    payload, folded = wire.unfold(given["custom_logit_processor"])
    own = {**(custom_params or {}), **(folded or {})}
    text = _first(chosen, "text")
    if text is None and isinstance(message := chosen.get("message"), Mapping):
        text = _joined(message)
    return Exchange(
        payload,
        {**_phases(own, meta), **_as_picked(own, meta)},
        _checked_ids(prompt_ids, "the prompt"),
        output := _checked_ids(output_ids, "the answer", _MAX_ID),
        text if isinstance(text, str) else None,
        _likely(chosen, meta),
        _finish(chosen, meta),
        [*_mismatches(answer, meta, len(prompt_ids), len(output))],
        given["limit"] if isinstance(given["limit"], int) else None,
    )


def _phases(custom_params: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the phases of a request's processors, as ``where`` of each, from its report."""
    report = meta.get(REPORT)
    phases = report.get("where", ()) if isinstance(report, Mapping) else ()
    chain = custom_params.get("chain")
    names = [f"{place}.where" for place in range(len(chain))] if chain else ["where"]
    told = zip(names, phases, strict=False)  # other fields of a request may add processors
    return {name: phase for name, phase in told if phase != "everywhere"}


def _as_picked(custom_params: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with which a request ran after its choices were scored."""
    report = meta.get(REPORT)
    told = report.get("choices") if isinstance(report, Mapping) else None
    found = dict(custom_params)
    for key in [key for key in found if key == "pick" or key.endswith(".pick")]:
        del found[key]
        if isinstance(told, Mapping) and "picked" in told:
            one, prefix = told["texts"][told["picked"]], key[: -len("pick")]
            if "text" in one:
                found[f"{prefix}choices"] = [one["text"]]
            else:
                ids = one["token_ids"]
                found |= {f"{prefix}token_ids": ids, f"{prefix}lengths": [len(ids)]}
    return found


def _chosen(answer: Any, choice: int) -> tuple[Mapping[str, Any], int]:
    """Return the chosen answer, and the number of answers."""
    several = answer
    if isinstance(answer, Mapping):
        several = answer.get("choices", [answer])
    if not isinstance(several, list) or not several:
        raise RequestError(f"the answer: expected a JSON object or a list, got {shown(answer)}")
    if not 0 <= choice < len(several):
        raise RequestError(f"there is no answer {choice}: there are {len(several)}, counted from 0")
    chosen = several[choice]
    if not isinstance(chosen, Mapping):
        raise RequestError(f"the answer: expected a JSON object, got {shown(chosen)}")
    if "error" in chosen:
        raise RequestError(f"the answer is an error: {shown(str(chosen['error']), 300)}")
    return chosen, len(several)


def _one_of(request: Mapping[str, Any], choice: int, count: int) -> dict[str, Any]:
    """Return the fields of one prompt of a request."""
    prompt = _first(request, "input_ids", "text", "prompt")
    several = isinstance(prompt, list) and any(isinstance(one, list | str) for one in prompt)
    prompts = len(prompt) if several else 1
    place = choice // max(1, count // prompts)

    def pick(value: Any) -> Any:
        if not several or not isinstance(value, list):
            return value
        if place >= len(value):
            raise RequestError(
                f"the request has {len(value)} prompts and the answer more: give the request of "
                "this answer"
            )
        return value[place]

    sampling = pick(request.get("sampling_params"))
    given = sampling if isinstance(sampling, Mapping) else {}
    metadata = request.get("metadata")
    entry = metadata.get(wire.ENTRY) if isinstance(metadata, Mapping) else None
    return {
        "prompt": pick(prompt),
        "custom_logit_processor": pick(request.get("custom_logit_processor")) or entry,
        "custom_params": _first(given, "custom_params") or request.get("custom_params"),
        "limit": _first({**request, **given}, *_LIMITS),
    }


def _prompt_ids(
    given: Mapping[str, Any], chosen: Mapping[str, Any], meta: Mapping[str, Any], tokenizer: Any
) -> Any:
    found = _first(chosen, "prompt_token_ids") or _first(meta, "prompt_token_ids")
    if found is not None:
        return found
    prompt = given["prompt"]
    if isinstance(prompt, list):
        return prompt
    if isinstance(prompt, str) and tokenizer is not None:
        encoded = tokenizer.encode(prompt)
        return [*getattr(encoded, "ids", encoded)]
    raise RequestError(_NO_PROMPT)


def _checked_ids(token_ids: Any, where: str, most: int = 1 << 62) -> list[int]:
    if not isinstance(token_ids, list | tuple) or not all(
        type(token_id) is int and 0 <= token_id < most for token_id in token_ids
    ):
        raise RequestError(f"{where}: expected a list of token ids, got {shown(token_ids)}")
    return [*token_ids]


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _joined(message: Mapping[str, Any]) -> str | None:
    """Return the text of a chat's message; ``None`` if a parser split it."""
    if message.get("reasoning_content") or message.get("tool_calls"):
        return None
    content = message.get("content")
    return content if isinstance(content, str) else None


def _likely(chosen: Mapping[str, Any], meta: Mapping[str, Any]) -> list[list[Likely]]:
    """Return the likeliest tokens of each step, from any of the three forms."""
    logprobs = chosen.get("logprobs")
    steps: Any = meta.get("output_top_logprobs")
    if steps is None and isinstance(logprobs, Mapping):
        steps = logprobs.get("top_logprobs")
        if steps is None and isinstance(content := logprobs.get("content"), list):
            steps = [one.get("top_logprobs") for one in content if isinstance(one, Mapping)]
    if not isinstance(steps, list):
        return []
    return [[*_one_step(step)] for step in steps]


def _one_step(step: Any) -> list[Likely]:
    found = []
    if isinstance(step, Mapping):
        step = [(logprob, text) for text, logprob in step.items()]
    for one in step if isinstance(step, list) else ():
        if isinstance(one, Mapping):
            text, logprob = one.get("token"), one.get("logprob")
        else:  # [logprob, id, text], where the text may be None
            logprob, text = one[0], one[-1] if one[-1] is not None else f"token {one[1]}"
        if isinstance(logprob, int | float):
            found.append(Likely(str(text), float(logprob)))
    return found


def _finish(chosen: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    reason = _first(meta, "finish_reason") or chosen.get("finish_reason")
    matched = chosen.get("matched_stop")
    if isinstance(reason, Mapping):
        matched, reason = _first(reason, "matched", "message", "length"), reason.get("type")
    if reason is None:
        return ""
    return str(reason) if matched is None else f"{reason} ({matched})"


def _mismatches(answer: Any, meta: Mapping[str, Any], prompt: int, output: int) -> list[str]:
    """Return a note for each count of the answer that differs from the number of ids."""
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    single = isinstance(answer, Mapping) and len(answer.get("choices", [0])) == 1
    usage = usage if isinstance(usage, Mapping) and single else {}
    found = []
    for name, here in (("prompt_tokens", prompt), ("completion_tokens", output)):
        told = _first(meta, name) or _first(usage, name)
        if isinstance(told, int) and told != here:
            found.append(
                f"the answer counts {told} {name}, but {here} were read: the answer may be of "
                "another request, or the tokenizer of another model"
            )
    return found
