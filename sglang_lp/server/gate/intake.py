"""The intake: everything that one request asks for, read once in each process.

SGLang gives the HTTP process a request as the body that came in, and later as a tokenized object;
the scheduler gets a ``Req``. Each form has a constructor of :class:`Intake`, and the guard reads
nothing else of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from sglang_lp.caches import packed
from sglang_lp.params import is_private
from sglang_lp.policy import Asked
from sglang_lp.server.gate.request_fields import GRAMMARS
from sglang_lp.server.gate.reserved_keys import (
    BUDGET_FIELD,
    EFFORT,
    FIELD_KEYS,
    THOUGHT,
    check_origin,
    check_shape,
)
from sglang_lp.server.gate.routed_form import unfold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sglang_lp.processor import LogitProcessor

_NO_IDS: frozenset[int] = frozenset()
#: Fields that can end an answer within a text.
_STOPS = ("stop", "stop_regex", "ignore_eos")
#: Names of these in SGLang's ``SamplingParams`` that differ from those of a request.
_RENAMED = {"stop": "stop_strs", "stop_regex": "stop_regex_strs"}

_FIELD_KEYS = frozenset(FIELD_KEYS.values())
#: Reserved keys that hold the values of other fields.
_ASKS = frozenset({BUDGET_FIELD, EFFORT, *_FIELD_KEYS})


@dataclass(frozen=True)
class Intake:
    """The fields of one request that the guard reads.

    Two intakes are equal if the guard decides alike on them. Parameters are compared by type and
    value, so ``True`` is not 1; parameters that cannot be packed are equal to no others.

    Attributes:
        payload: Its ``custom_logit_processor``: a payload, the name of a class or of a profile, or
            ``None``.
        custom_params: Its ``custom_params``, or ``None``.
        beam_width: Its ``beam_width``, or ``None``.
        sampled: Whether its tokens are sampled; without sampling they are the most likely ones.
        limit: How many tokens it can get, if known.
        masked: Whether it asks for SGLang's ``return_sampling_mask``.
        logprobs: Whether it asks for SGLang's ``return_logprob``.
        prompt_tokens: How many tokens its prompt has, if known.
        grammar: The field that gives its answer a grammar, as ``json_schema``, or ``None``.
        stopped_by: The field that can end its answer within a text, as ``stop``, or ``None``.
        stop_token_ids: Its ``stop_token_ids``.
        reasoning: Whether SGLang splits its answer into reasoning and content.
        packed: ``custom_params`` as bytes, or an object of its own where they cannot be packed.
    """

    payload: Any = field(default=None, hash=False)
    custom_params: Any = field(default=None, compare=False)
    beam_width: float | None = None
    sampled: bool = True
    limit: int | None = None
    masked: bool = False
    logprobs: bool = False
    prompt_tokens: int | None = None
    grammar: str | None = None
    stopped_by: str | None = None
    stop_token_ids: frozenset[int] = frozenset()
    reasoning: bool = False
    packed: object = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = packed(self.custom_params)
        object.__setattr__(self, "packed", object() if own is None else own)

    @classmethod
    def of_text(  # noqa: PLR0913 - a text has this many fields
        cls,
        sent: tuple[Any, Any],
        sampling: Mapping[str, Any],
        *,
        masked: bool,
        logprobs: bool,
        prompt_tokens: int | None,
        reasoning: bool,
    ) -> Self:
        """Return the intake of one text of a body (``GenerateReqInput``).

        Args:
            sent: What :func:`unfold_sent` returned for the text.
            sampling: Its sampling parameters as the client sent them, over the server's preferred
                ones. SGLang has not checked their types.
            masked: As for the class.
            logprobs: As for the class.
            prompt_tokens: As for the class.
            reasoning: Its ``require_reasoning``.
        """
        beam_width, limit = sampling.get("beam_width"), sampling.get("max_new_tokens")
        return cls(
            *sent,
            # A width or a limit of another type is SGLang's to refuse.
            beam_width if isinstance(beam_width, int | float) else None,
            sampling.get("temperature") != 0 and sampling.get("top_k") != 1,
            limit if isinstance(limit, int) else None,
            masked=masked,
            logprobs=logprobs,
            prompt_tokens=prompt_tokens,
            reasoning=reasoning and not _has_thought(sent[1]),
            **_ending(sampling.get),
        )

    @classmethod
    def of_tokenized(cls, tokenized: Any) -> Self:
        """Return the intake of a request that the HTTP process has tokenized.

        Args:
            tokenized: SGLang's ``TokenizedGenerateReqInput``.

        Raises:
            RequestError: As :func:`unfold_sent`.
        """
        sampling = tokenized.sampling_params
        payload, given = unfold_sent(
            getattr(tokenized, "custom_logit_processor", None), sampling.custom_params
        )
        limit = getattr(sampling, "max_new_tokens", None)
        return cls(
            payload,
            given,
            limit=limit,
            prompt_tokens=len(getattr(tokenized, "input_ids", None) or ()),
            **_fields(tokenized, given),
        )

    @classmethod
    def of_req(cls, req: Any, longest: int | None) -> Self:
        """Return the intake of a request in the scheduler.

        Args:
            req: SGLang's ``Req``.
            longest: Most tokens of prompt and answer together, if known.

        Raises:
            RequestError: ``custom_params`` are no object, hold a key of SGLang's in a shape that
                SGLang does not give it, or something is given twice.
        """
        sampling = req.sampling_params
        check_shape(sampling.custom_params, req)
        payload, given = unfold(req.custom_logit_processor, sampling.custom_params)
        prompt_tokens = len(req.origin_input_ids)
        limit = getattr(sampling, "max_new_tokens", None)
        if longest is not None:
            room = max(0, longest - prompt_tokens - 1)
            limit = room if limit is None else min(limit, room)
        return cls(
            payload,
            given,
            limit=limit,
            prompt_tokens=prompt_tokens,
            **_fields(req, given),
        )

    @property
    def searches_beams(self) -> bool:
        """Whether the request is a beam search: one beam is none."""
        return self.beam_width is not None and self.beam_width > 1

    @property
    def names_anything(self) -> bool:
        """Whether the client names a processor, a parameter, a budget or a level of effort."""
        if self.payload is not None:
            return True
        keys = self.custom_params if isinstance(self.custom_params, Mapping) else ()
        return any(key in _ASKS or not is_private(key) for key in keys)

    @property
    def fields(self) -> tuple[tuple[str, Any], ...]:
        """Other engines' fields that the request has, each with its value."""
        found = self.custom_params
        if not isinstance(found, Mapping) or _FIELD_KEYS.isdisjoint(found):  # nearly always
            return ()
        return tuple((name, found[key]) for name, key in FIELD_KEYS.items() if key in found)

    def asked(
        self, runs: type[LogitProcessor] | str | None, custom_params: Any, resumed: int
    ) -> Asked:
        """Return the fields of this request that the operator's rules read.

        Args:
            runs: As in ``Asked``: what was found for its payload.
            custom_params: The request's parameters for processors only.
            resumed: Number of tokens at the end of its prompt that are the answer so far.
        """
        found = custom_params if isinstance(custom_params, Mapping) else {}
        return Asked(
            runs,
            custom_params,
            found.get(BUDGET_FIELD),
            found.get(EFFORT),
            self.reasoning,
            resumed,
            self.fields,
        )


def unfold_sent(payload: Any, custom_params: Any) -> tuple[Any, Any]:
    """Return the processor and the parameters that a client sent, from whichever field.

    Raises:
        RequestError: The client sent a key of SGLang's or ours, or something is given twice.
    """
    check_origin(custom_params)
    return unfold(payload, custom_params)


def per_text(wanted: Any) -> Sequence[Any]:
    """Return a field of a body for each of its texts, or once for all of them."""
    return wanted if wanted and isinstance(wanted, list) else [wanted]


def prompt_lengths(obj: Any) -> Sequence[int | None]:
    """Return the number of tokens of each prompt of a body, or once for all; ``None``: unknown."""
    prompts = getattr(obj, "input_ids", None)
    if not prompts or not isinstance(prompts, list):
        return [None]
    if isinstance(prompts[0], int):
        return [len(prompts)]
    return [len(one) if isinstance(one, list) else None for one in prompts]


def _has_thought(custom_params: Any) -> bool:
    """Tell whether a chat continues an answer whose reasoning has ended: SGLang does not look."""
    return isinstance(custom_params, Mapping) and THOUGHT in custom_params


def _fields(request: Any, custom_params: Any) -> dict[str, Any]:
    """Return the fields that a tokenized request and a ``Req`` have in common."""
    sampling = request.sampling_params
    return {
        "beam_width": getattr(sampling, "beam_width", None),
        # A temperature of 0 has become a top_k of 1.
        "sampled": getattr(sampling, "top_k", None) != 1,
        "masked": bool(getattr(request, "return_sampling_mask", False)),
        "logprobs": bool(getattr(request, "return_logprob", False)),
        "reasoning": bool(getattr(request, "require_reasoning", False))
        and not _has_thought(custom_params),
        **_ending(lambda name: getattr(sampling, _RENAMED.get(name, name), None)),
    }


def _ending(get: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields that say how an answer may end, given a sampling parameter by its name."""
    ids = get("stop_token_ids")
    is_list = isinstance(ids, list | tuple | set | frozenset)
    return {
        "grammar": next((name for name in GRAMMARS if get(name) is not None), None),
        "stopped_by": next((name for name in _STOPS if get(name)), None),
        "stop_token_ids": frozenset(filter(_is_id, ids)) if is_list else _NO_IDS,
    }


def _is_id(value: object) -> bool:
    return isinstance(value, int)
