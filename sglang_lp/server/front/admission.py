"""The gate in the HTTP process: refuses a request with HTTP 400 before SGLang schedules it."""

from __future__ import annotations

import math
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp.caches import packed
from sglang_lp.errors import RequestError, SglangLpError, Unsupported, shown
from sglang_lp.params.flat_json import read_flat
from sglang_lp.server.front.answer_errors import noting
from sglang_lp.server.front.bounds import (
    check_choices,
    check_copies,
    check_entries,
    check_making,
    check_prompt_logprobs,
    check_scored,
    check_streamed,
)
from sglang_lp.server.front.fields import take_max_thinking_tokens
from sglang_lp.server.front.header import count_logprobs, name_asking, record_ran
from sglang_lp.server.front.meta_info import expect
from sglang_lp.server.front.placeholders import sending_placeholder
from sglang_lp.server.front.prompts import check_ids, check_prompts
from sglang_lp.server.front.scoring import score_later
from sglang_lp.server.front.whole_requests import check_not_empty, named_as_sent
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.gate.field_checks import POSITIONS, check_embeddings, check_positions
from sglang_lp.server.gate.intake import Intake, per_text, prompt_lengths, unfold_sent
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.gate.reserved_keys import MAKING, add_own
from sglang_lp.server.gate.whole_answers import find_ending, is_whole
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence

    from sglang_lp.server.gate.guard import Admitted, Guard


#: Microseconds to which the time of constructors is rounded up, so that copies are equal.
_MADE_IN = 100


class Admission:
    """Admits requests in the HTTP process. ``admit`` and ``admit_stream`` are hooks.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def admit(self, tokenized: Any, manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
        """Check a request that SGLang has tokenized."""
        name_asking(getattr(tokenized, "rid", None))
        with noting(), sending_placeholder(manager, obj):
            with self._guard.counting(), named_as_sent():
                ids = getattr(tokenized, "input_ids", None)
                check_not_empty(tokenized)
                check_embeddings(tokenized, manager)
                check_ids(manager, obj, ids)
                check_positions(tokenized, ids)
                check_prompt_logprobs(count_logprobs(_prompt_logprobs(tokenized, obj)))
            if self._admit_tokenized(manager, tokenized, obj):
                expect(obj)

    def check_list(self, manager: Any, obj: Any) -> Iterator[None]:
        """Check every request of a list, and yield between two of them.

        Args:
            manager: SGLang's ``TokenizerManager``.
            obj: The list as SGLang has normalized it.
        """
        name_asking(None)  # each of its requests has an id of its own
        with noting(), sending_placeholder(manager, obj):
            with self._guard.counting(), named_as_sent():
                yield from check_prompts(manager, obj)
            yield from self._check_list(manager, obj)

    def _check_list(self, manager: Any, obj: Any) -> Iterator[None]:
        """Check the processors of a list."""
        # SGLang has normalized the body. A body for embeddings has no processors.
        payloads = getattr(obj, "custom_logit_processor", None)
        if payloads is None and hasattr(obj, "max_thinking_tokens"):
            samplings = obj.sampling_params
            if not self._guard.rules.is_empty or any(map(_has_params, samplings)):
                payloads = [None] * len(samplings)
        if payloads is None:
            return
        size, samplings = obj.batch_size, obj.sampling_params
        with self._guard.counting():
            _check_lengths(size, payloads, samplings)
        texts = [*zip(payloads[:size], samplings[:size], strict=True)]
        yield from self._check_body(manager, obj, texts, getattr(obj, "parallel_sample_num", 1))

    def admit_stream(self, manager: Any, obj: Any) -> None:
        """Check a streaming request before SGLang sends its HTTP status.

        A later refusal would be an event of the stream, after an HTTP 200.
        """
        if hasattr(obj, "is_single"):
            return  # a body that SGLang has normalized was admitted before its first answer
        name_asking(getattr(obj, "rid", None))
        try:
            with noting(), sending_placeholder(manager, obj):
                with self._guard.counting(), named_as_sent():
                    for _ in check_prompts(manager, obj):
                        pass
                self._admit_stream(manager, obj)
        except RequestError as error:
            from fastapi import HTTPException

            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error

    def _admit_stream(self, manager: Any, obj: Any) -> None:
        """Check the processors of a body that SGLang has not normalized."""
        if self._guard.rules.reads_effort:
            take_max_thinking_tokens(manager, obj)
        payloads, samplings = obj.custom_logit_processor, obj.sampling_params
        if payloads is None and not samplings and self._guard.rules.is_empty:
            record_ran(())
            return
        if isinstance(payloads, list) and _is_single(obj):
            payloads = [payloads]  # the check of each payload refuses a list
        if not isinstance(samplings, list):
            samplings = [samplings] * (len(payloads) if isinstance(payloads, list) else _texts(obj))
        if not isinstance(payloads, list):
            payloads = [payloads] * len(samplings)  # as SGLang does later
        texts = [*zip(payloads, samplings, strict=False)]
        for _ in self._check_body(manager, obj, texts, _copies(samplings), streamed=True):
            pass  # SGLang waits for the check, and so do all requests

    def _admit_tokenized(self, manager: Any, tokenized: Any, obj: Any) -> bool:
        """Check one request, and return whether its answer comes with a report."""
        guard = self._guard
        sampling: Any = getattr(tokenized, "sampling_params", None)
        payload = getattr(tokenized, "custom_logit_processor", None)
        decides = not guard.rules.is_empty and sampling is not None
        if payload is None and not getattr(sampling, "custom_params", None) and not decides:
            record_ran(())
            return False
        guard.gate = Gate.ADMISSION
        with guard.counting():
            intake = Intake.of_tokenized(tokenized)
            custom_params = intake.custom_params
            check_entries([custom_params])
        admitted = self._admit(manager, intake)
        if admitted is not None:
            with guard.counting():
                copies = getattr(sampling, "n", None) or 1
                check_copies(intake.prompt_tokens or 0, copies)
                check_making(admitted.making * copies, copies)
                score_later(guard, obj, tokenized, intake, admitted)
            if admitted.making:
                made_in = _MADE_IN * math.ceil(admitted.making * 1e6 / _MADE_IN)
                custom_params = add_own(custom_params, MAKING, made_in)
        if intake.payload is not None:
            # SGLang passes on the operator's spelling of the payload, never the client's.
            tokenized.custom_logit_processor = (
                intake.payload if admitted is None else admitted.payload
            )
            custom_params = custom_params or {}  # without a dict SGLang passes no history
        if type(custom_params) is not dict and isinstance(custom_params, dict):
            custom_params = {**custom_params}
        sampling.custom_params = custom_params
        return admitted is not None or is_whole(guard, intake)

    def _check_body(
        self,
        manager: Any,
        obj: Any,
        texts: Sequence[tuple[Any, Any]],
        copies: int,
        *,
        streamed: bool = False,
    ) -> Iterator[None]:
        """Check the texts of one body, and yield between two. Equal texts are checked once.

        Args:
            manager: SGLang's ``TokenizerManager``.
            obj: The body, a ``GenerateReqInput``.
            texts: Payload and sampling parameters of each text, as SGLang got them.
            copies: Number of copies of each text (``n``).
            streamed: Whether the check goes through them in one go.
        """
        seconds, objects, scored = 0.0, 0, 0
        choices: set[Hashable] = set()
        intakes = yield from self._intakes(manager, obj, texts, copies)
        if streamed:
            with self._guard.counting():
                check_streamed(len({(packed(one.payload), one.packed) for one in intakes}))
        for intake, count in intakes.items():
            yield
            admitted = self._admit(manager, intake)
            if admitted is None:
                continue
            choices |= admitted.choices
            scored += count * admitted.picks
            with self._guard.counting():
                check_choices(choices)
                check_scored(scored)
            if admitted.making:
                seconds += admitted.making * count * copies
                objects += count * copies
                with self._guard.counting():
                    check_making(seconds, objects)

    def _intakes(
        self, manager: Any, obj: Any, texts: Sequence[tuple[Any, Any]], copies: int
    ) -> Generator[None, None, Mapping[Intake, int]]:
        """Return the intakes of the texts of one body, and how many texts have each."""
        unfolded: dict[tuple[int, int], tuple[tuple[Any, Any], dict[str, Any]]] = {}
        keys = [(id(payload), id(sampling)) for payload, sampling in texts]
        self._guard.gate = Gate.ADMISSION
        for key, (payload, sampling) in zip(keys, texts, strict=True):
            if key not in unfolded:
                with self._guard.counting():
                    merged = {**(manager.preferred_sampling_params or {}), **_object(sampling)}
                    found = unfold_sent(payload, _custom_params(obj, merged))
                unfolded[key] = found, merged
                yield
        # First, so that the checks below never go through an oversized body.
        with self._guard.counting():
            check_entries([unfolded[key][0][1] for key in keys], copies)
        masks = per_text(getattr(obj, "return_sampling_mask", None))
        shows = per_text(getattr(obj, "return_logprob", None))
        lengths = prompt_lengths(obj)
        asked = Counter(
            (
                key,
                bool(masks[index % len(masks)]),
                bool(shows[index % len(shows)]),
                lengths[index % len(lengths)],
            )
            for index, key in enumerate(keys)
        )
        intakes: Counter[Intake] = Counter()
        for (key, masked, logprobs, tokens), count in asked.items():
            intake = Intake.of_text(
                *unfolded[key],
                masked=masked,
                logprobs=logprobs,
                prompt_tokens=tokens,
                reasoning=bool(getattr(obj, "require_reasoning", False)),
            )
            intakes[intake] += count
            yield
        return intakes

    def _admit(self, manager: Any, intake: Intake) -> Admitted | None:
        """Check one request; return the admitted request, or ``None`` if no processor runs.

        Raises:
            RequestError: The request is refused.
            HTTPException: The processor failed. The client gets HTTP 500, as it does when a
                processor fails in a scheduler.
        """
        guard = self._guard
        try:
            with guard.counting():
                if intake.names_anything:
                    _check_enabled(manager, intake)
                if not _pickles():
                    read_flat(intake.custom_params)
            if not guard.concerns(intake):
                record_ran(())
                return None
            guard.learn(Gate.ADMISSION, manager)
            admitted = guard.admit(intake)
            with guard.counting():
                find_ending(guard, intake, admitted)
        except RequestError:
            raise
        except SglangLpError as error:
            from fastapi import HTTPException

            metrics = writing()
            if metrics is not None:
                metrics.fail(Coded.of(error))
            raise HTTPException(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
        record_ran(admitted.names if admitted is not None else ())
        return admitted


def _prompt_logprobs(tokenized: Any, obj: Any) -> int:
    """Return how many logprobs of its prompt a request asks for, over all of its copies (``n``).

    One with its text counts as four.
    """
    if not getattr(tokenized, "return_logprob", False):  # an embedding has none
        return 0
    start = tokenized.logprob_start_len
    if start < 0:
        return 0
    each = 1 + tokenized.top_logprobs_num + len(tokenized.token_ids_logprob or ())
    copies = getattr(tokenized.sampling_params, "n", None) or 1
    texts = 4 if obj.return_text_in_logprobs else 1
    prompt = tokenized.input_ids or tokenized.input_embeds or ()
    asked = [getattr(tokenized, name, None) for name in POSITIONS]  # of a prompt that is scored
    positions = next((len(one) for one in asked if one is not None), max(len(prompt) - start, 0))
    return int(positions * each * copies * texts)


def _has_params(sampling: Any) -> bool:
    """Tell whether a request has parameters, or named its processor in its metadata."""
    return isinstance(sampling, dict) and bool(sampling.get("custom_params"))


def _check_enabled(manager: Any, intake: Intake) -> None:
    """Refuse a request on a server without ``--enable-custom-logit-processor``.

    SGLang's own check reads only its field ``custom_logit_processor``. With strict thinking SGLang
    itself reads the budget of a request without a processor.

    Raises:
        Unsupported: SGLang calls no processor. The message says how to enable them.
    """
    settings = manager.server_args
    if getattr(settings, "enable_custom_logit_processor", True):
        return
    if intake.payload is not None or not getattr(settings, "enable_strict_thinking", False):
        field = "custom_params" if intake.payload is None else "custom_logit_processor"
        raise Unsupported(
            f"{field}: expected none, as this server takes no custom logit "
            "processors; ask its operator to add --enable-custom-logit-processor"
        )


def _pickles() -> bool:
    """Tell whether SGLang's processes can send each other nested objects."""
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_USE_PICKLE_IPC.get())


def _is_single(obj: Any) -> bool:
    """Tell whether SGLang will treat a body as one request, not as a list."""
    if obj.text is not None:
        return isinstance(obj.text, str)
    return bool(obj.input_ids) and isinstance(obj.input_ids[0], int)


def _texts(obj: Any) -> int:
    """Return how many requests SGLang will make of a body, without copies (``n``)."""
    return 1 if _is_single(obj) else max(1, len(obj.text or obj.input_ids or ()))


def _copies(samplings: Sequence[Any]) -> int:
    """Return how many copies SGLang will make of each text; SGLang refuses an invalid ``n``."""
    copies = samplings[0].get("n") if samplings and isinstance(samplings[0], dict) else 1
    return copies if isinstance(copies, int) and copies > 1 else 1


def _check_lengths(size: int, payloads: Sequence[Any], samplings: Sequence[Any]) -> None:
    """Refuse a list that does not have a processor and sampling parameters for each text."""
    if min(len(payloads), len(samplings)) < size:
        raise RequestError(
            f"custom_logit_processor: expected {size} entries, and as many of "
            f"sampling_params, got {len(payloads)} and {len(samplings)}; give one for each prompt"
        )


def _object(sampling: Any) -> dict[str, Any]:
    if isinstance(sampling, dict | None):
        return sampling or {}
    raise RequestError(f"sampling_params: expected an object, got {shown(sampling)}")


def _custom_params(obj: Any, sampling: dict[str, Any]) -> Any:
    """Return the ``custom_params`` that SGLang will build from the request's fields."""
    custom_params = sampling.get("custom_params")
    if obj.max_thinking_tokens is not None and isinstance(custom_params or {}, dict):
        custom_params = {**(custom_params or {}), "thinking_budget": obj.max_thinking_tokens}
    return custom_params


def supports_sampling_mask(*_args: object, **_kwargs: object) -> bool:
    """Replace SGLang's check, which would unpickle a payload: both gates check instead."""
    return True
