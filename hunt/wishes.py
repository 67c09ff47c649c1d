"""The processors and parameters of a request, by a naive reading of its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hunt.sent import COMPLETIONS, GENERATE
from hunt.tokens import decode

if TYPE_CHECKING:
    from hunt.sent import Sent

__all__ = ["Wish", "names_of", "wish_of"]

#: Built-ins that hold behind the thoughts of an answer that SGLang splits, unless told otherwise.
_OF_CONTENT = frozenset(
    f"{name}LogitProcessor" for name in ("AllowedTokens", "Choice", "ForcedSequence", "ForcedWords")
)


class Wish(NamedTuple):
    """The part of a request that an answer belongs to.

    Attributes:
        processors: Name and parameters of each; the links of a chain.
        params: The parameters as they were sent.
        sampling: Sampling parameters, in the endpoint's own words.
        begun: The text that the answer goes on with.
        may_split: Whether a server with a reasoning parser may split the answer.
    """

    processors: list[tuple[str, Mapping[str, Any]]]
    params: Mapping[str, Any]
    sampling: Mapping[str, Any]
    begun: str
    may_split: bool = False

    @property
    def everywhere(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The processors that run in both phases of the answer."""
        return [
            (name, params)
            for name, params in self.processors
            if (params.get("where") or self._phase_of(name)) == "everywhere"
        ]

    def _phase_of(self, name: str) -> str:
        """Return the phase of a processor that names none."""
        return "answer" if self.may_split and name in _OF_CONTENT else "everywhere"

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest tokens come."""
        return self.sampling.get("temperature") == 0

    @property
    def has_penalty(self) -> bool:
        """Whether SGLang counts tokens, of which it sees the newest a step late or in time."""
        return any("penalty" in name for name in self.sampling)

    @property
    def searches_beams(self) -> bool:
        """Whether the answers are those of a beam search."""
        return "beam_width" in self.sampling

    @property
    def may_stop(self) -> bool:
        """Whether a text or a token of the request ends the answer."""
        return any("stop" in name and "trim" not in name for name in self.sampling)


def wish_of(sent: Sent, place: int) -> Wish:
    """Return the part of a request that an answer belongs to.

    Args:
        sent: The HTTP request.
        place: Of the answer in its reply.
    """
    body = sent.body
    sampling = body.get("sampling_params", body)
    if isinstance(sampling, list):
        place //= _copies(sampling[0])
        sampling = sampling[min(place, len(sampling) - 1)]
    else:
        place //= _copies(sampling)
    name = body.get("custom_logit_processor")
    name = name[min(place, len(name) - 1)] if isinstance(name, list) and name else name
    params = sampling.get("custom_params")
    metadata = body.get("metadata")
    whole = metadata.get("sglang_lp") if isinstance(metadata, Mapping) else name
    if isinstance(whole, str) and whole.startswith("{"):
        folded = json.loads(whole)
        name, params = folded.get("processor"), folded.get("params")
    params = params if isinstance(params, Mapping) else {}
    may_split = sent.path not in (COMPLETIONS, GENERATE) or bool(body.get("require_reasoning"))
    return Wish([*_links(name, params)], params, sampling, _begun(sent, place), may_split)


def names_of(sent: Sent) -> list[str]:
    """Return the names of all processors that a request asks for."""
    if sent.odd:
        return sorted(sent.odd)
    names: list[str] = []
    count = sent.body.get("custom_logit_processor")
    for place in range(len(count) if isinstance(count, list) else 1):
        names += [name for name, _ in wish_of(sent, place).processors] or ["none"]
    return names


def _copies(sampling: Mapping[str, Any]) -> int:
    count = sampling.get("n")
    return count if isinstance(count, int) and count > 0 else 1


def _links(name: Any, params: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if name == "ChainLogitProcessor" and isinstance(params.get("chain"), list):
        for place, link in enumerate(params["chain"]):
            head = f"{place}."
            own = {key[len(head) :]: one for key, one in params.items() if key.startswith(head)}
            yield str(link), own
    elif isinstance(name, str):
        yield name, params


def _begun(sent: Sent, place: int) -> str:
    body = sent.body
    if sent.path in {GENERATE, COMPLETIONS}:
        prompt = body.get("text", body.get("input_ids", body.get("prompt")))
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            prompt = prompt[min(place, len(prompt) - 1)]
        return prompt if isinstance(prompt, str) else decode(prompt or [])
    if body.get("continue_final_message"):
        return str(body["messages"][-1]["content"])
    return ""
