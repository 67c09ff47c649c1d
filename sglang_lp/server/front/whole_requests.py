"""The check of a whole request in the HTTP process, before SGLang normalizes and tokenizes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

from sglang_lp.errors import RequestError, shown
from sglang_lp.server.front.answer_errors import noting
from sglang_lp.server.front.bounds import (
    MAX_CHARACTERS_OF_TOKEN,
    check_characters,
    check_sampled,
    check_texts,
)
from sglang_lp.server.front.header import find_endpoint, name_asking
from sglang_lp.server.front.placeholders import sending_placeholder
from sglang_lp.server.front.prompts import check_prompts
from sglang_lp.server.gate.field_checks import (
    check_body,
    check_sampling,
    check_token_ids,
    lengths,
    steps_of,
)
from sglang_lp.server.gate.intake import per_text
from sglang_lp.server.gate.request_fields import CLIENT_NAMES, GRAMMARS

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

#: Attribute of a body that was checked before SGLang sent the status of its stream.
_CHECKED = "sglang_lp_checked"
#: Most characters of several texts that SGLang tokenizes in one go: some 0.5 s.
_MOST_TOGETHER = 262_144
#: Characters whose tokenizing takes as long as a call of the tokenizer.
_EACH_STOP = 32
#: Routes on which SGLang makes a request of its own.
_HEALTH = ("/health", "/health_generate")
#: Steps of the matcher that take as long as reading a pattern.
_READ = 512
_EMPTY = "text: expected a token or more in each prompt, got none; write a text"


class WholeRequests:
    """Checks requests by the table of SGLang's fields. Its public methods are hooks.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def check(self, manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
        """Check a body of any endpoint, or of ``Engine``, with or without a processor."""
        if _CHECKED in vars(obj):
            return
        try:
            texts = _check_shape(obj)
            if find_endpoint() is not None:  # a program with an Engine is the operator's own
                check_texts(texts, _copies(obj))
                _check_rid(obj)
        except RequestError as error:
            self._refuse(obj, error)
        try:
            _check_fields(manager, obj, texts)
        except RequestError as error:
            with sending_placeholder(manager, obj):
                self._refuse(obj, error)

    def check_stream(self, manager: Any, obj: Any) -> None:
        """Check a streamed body before SGLang sends the HTTP status of its answer."""
        if hasattr(obj, "is_single"):
            return  # checked before SGLang normalized it
        try:
            self.check(manager, obj)
        except RequestError as error:
            from fastapi import HTTPException

            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error
        setattr(obj, _CHECKED, True)

    def check_tokenize(
        self, serving: Any, adapted_request: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """Check the texts of ``/tokenize``."""
        with self._refusing(None):
            prompt = adapted_request.prompt
            texts = prompt if isinstance(prompt, list) else [prompt]
            check_texts(len(texts), 1)
            context = serving.tokenizer_manager.model_config.context_len
            check_characters(texts, context)
            total = sum(len(one) for one in texts if isinstance(one, str))
            most = max(_MOST_TOGETHER, context * MAX_CHARACTERS_OF_TOKEN)
            if total > most:
                raise RequestError(
                    f"prompt: expected at most {most} characters in all texts, got "
                    f"{total}; send several requests"
                )

    def check_detokenize(
        self, serving: Any, adapted_request: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """Check the token ids of ``/detokenize``."""
        config = serving.tokenizer_manager.model_config
        with self._refusing(None):
            tokens = adapted_request.tokens
            lists = tokens if tokens and isinstance(tokens[0], list) else [tokens]
            check_texts(len(lists), 1)
            for ids in lists:
                if len(ids) > config.context_len:
                    raise RequestError(
                        f"tokens: expected at most {config.context_len}, the context of the served "
                        f"model, got {len(ids)}; send several requests"
                    )
                if all(type(one) is int for one in ids):  # SGLang refuses others
                    check_token_ids("tokens", ids, config.vocab_size)

    def _refuse(self, obj: Any, error: RequestError) -> NoReturn:
        with self._refusing(obj):
            raise error

    @contextmanager
    def _refusing(self, obj: Any) -> Iterator[None]:
        """Count and note a refusal of the block, with the name that the client wrote."""
        name_asking(getattr(obj, "rid", None))
        with noting(), self._guard.counting(), named_as_sent():
            yield


@contextmanager
def named_as_sent() -> Iterator[None]:
    """Name the field of a refusal of the block as the client wrote it."""
    try:
        yield
    except RequestError as error:
        name = CLIENT_NAMES.get(find_endpoint() or "", {}).get(error.param or "")
        if name is None or type(error) is not RequestError:
            raise
        raise RequestError(name + str(error).removeprefix(error.param or "")) from None


def _check_shape(obj: Any) -> int:
    """Check the parts of a body that decide how many requests SGLang makes of it.

    Returns:
        The number of its texts; 0 for one text that is no list.
    """
    _check_prompt(obj)
    samplings = obj.sampling_params
    texts = _texts(obj)
    if isinstance(samplings, list):
        if not texts or len(samplings) != texts:
            expected = f"a list of {texts}, one for each text" if texts else "an object"
            raise RequestError(
                f"sampling_params: expected {expected}, got {shown(samplings)}; give one object"
            )
    elif samplings is not None and not isinstance(samplings, dict):
        raise RequestError(f"sampling_params: expected an object, got {shown(samplings)}")
    for one in samplings if isinstance(samplings, list) else ():
        if not isinstance(one, dict):
            raise RequestError(f"sampling_params: expected objects, got {shown(one)} in the list")
    copies = _copies(obj)
    if type(copies) is not int:
        raise RequestError(f"n: expected a whole number, got {shown(copies)}")
    return texts


def _check_rid(obj: Any) -> None:
    """Refuse ids of SGLang's own health checks, which a busy scheduler drops without an answer."""
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

    if find_endpoint() in _HEALTH:
        return
    for rid in per_text(obj.rid):
        if isinstance(rid, str) and rid.startswith(HEALTH_CHECK_RID_PREFIX):
            raise RequestError(
                f"rid: expected an id that does not begin with {HEALTH_CHECK_RID_PREFIX}, which "
                "SGLang's health checks have; choose another"
            )


def _check_prompt(obj: Any) -> None:
    """Refuse prompts of which SGLang reads a part that is not there, with HTTP 500."""
    text, ids, embeds = obj.text, obj.input_ids, getattr(obj, "input_embeds", None)
    if text is not None and isinstance(ids, list):
        listed = isinstance(text, list)
        fits = all(isinstance(one, list) is listed for one in ids)
        if not fits or (listed and len(text) != len(ids)):
            raise RequestError(
                "input_ids: expected token ids for each text, or none next to text, got other "
                "prompts; leave out one of them"
            )
    if text is None and ids is None and isinstance(embeds, list) and not (embeds and embeds[0]):
        raise RequestError("input_embeds: expected an embedding or more, got none")


def _texts(obj: Any) -> int:
    """Return the number of texts of a body, 0 for one that is no list."""
    given = obj.text if obj.text is not None else obj.input_ids
    if given is None:
        given = obj.input_embeds
        if not isinstance(given, list) or not given or not isinstance(given[0], list):
            return 0  # SGLang refuses it
        return len(given) if given[0] and isinstance(given[0][0], list) else 0
    if not isinstance(given, list) or (obj.text is None and (not given or type(given[0]) is int)):
        return 0
    return len(given)


def _copies(obj: Any) -> Any:
    """Return the number of copies of each text; a list has the same for all, or is refused."""
    samplings = obj.sampling_params
    first = samplings[0] if isinstance(samplings, list) else samplings
    return first.get("n", 1) if first else 1


def _check_fields(manager: Any, obj: Any, texts: int) -> None:
    """Check the fields of a body whose shape is known."""
    vocab_size = manager.model_config.vocab_size
    samplings, copies = obj.sampling_params, _copies(obj)
    if find_endpoint() is not None:
        _check_patterns(obj, texts, copies)
    if isinstance(samplings, list):
        for one in {id(one): one for one in samplings}.values():  # SGLang repeats one object
            check_sampling(one, vocab_size)
    elif samplings:
        check_sampling(samplings, vocab_size)
    check_body(obj, vocab_size, many=texts > 0 or copies > 1)
    if find_endpoint() is not None:
        _check_work(obj, texts, copies)
    _check_texts(manager, obj, texts)
    if texts or copies > 1:
        for name, length in lengths(obj).items():
            if length != max(texts, 1) and name not in {"text", "input_ids"}:
                raise RequestError(
                    f"{name}: expected one value, or one for each of {max(texts, 1)} texts, got "
                    f"{length}"
                )
        _check_media(obj, texts)
    if getattr(obj, "custom_labels", None):
        _check_labels(manager, obj.custom_labels)


def _check_media(obj: Any, texts: int) -> None:
    """Check that each text of a list has media: SGLang does so for images only."""
    for name in ("audio_data", "video_data"):
        media = getattr(obj, name, None)
        if isinstance(media, list) and (not media or (texts and len(media) != texts)):
            raise RequestError(
                f"{name}: expected one value, or one for each of {max(texts, 1)} texts, got "
                f"{len(media)}"
            )


def _check_patterns(obj: Any, texts: int, copies: int) -> None:
    """Check how many patterns a body has before the first is read, or its type is known."""
    reading = sum(
        times * sum(_READ + 8 * len(one) for one in _listed(sampling.get("stop_regex")))
        for sampling, times in _samplings(obj, texts)
    )
    check_sampled({"stop_regex": copies * reading})


def _check_work(obj: Any, texts: int, copies: int) -> None:
    """Check the work of SGLang's own fields over all texts and copies of a body."""
    given = getattr(obj, "token_ids_logprob", None) or ()
    work: Counter[str] = Counter()
    each = [one for one in given if isinstance(one, list)]
    work["token_ids_logprob"] = sum(map(len, each)) if each else len(given) * max(texts, 1)
    for sampling, times in _samplings(obj, texts):
        for name in ("logit_bias", "stop_token_ids", *GRAMMARS):
            work[name] += times * len(sampling.get(name) or ())
        stop, patterns = (_listed(sampling.get(name)) for name in ("stop", "stop_regex"))
        steps = steps_of(patterns, stop) + sum(_READ + 8 * len(one) for one in patterns)
        work["stop"] += times * sum(_EACH_STOP + len(text) for text in stop)
        work["stop_regex"] += times * steps
    shows = per_text(getattr(obj, "return_logprob", None))
    if any(shows):
        work["top_logprobs_num"] = _logprobs_of_step(obj, texts, shows, work["token_ids_logprob"])
    check_sampled({name: copies * one for name, one in work.items()})


def _logprobs_of_step(obj: Any, texts: int, shows: Sequence[Any], ids: int) -> int:
    """Return how many logprobs each step of a body's texts returns; a quarter, if it is the only.

    Args:
        obj: The body.
        texts: Number of its texts; 0 for one text that is no list.
        shows: Its ``return_logprob`` for each text, or once for all.
        ids: Entries of its ``token_ids_logprob`` over all texts.
    """
    tops = per_text(obj.top_logprobs_num)
    shown = [at for at in range(max(texts, 1)) if shows[at % len(shows)]]
    number = ids + sum(1 + (tops[at % len(tops)] or 0) for at in shown)
    limits = [one.get("max_new_tokens") for one, _ in _samplings(obj, texts)]
    is_only = bool(limits) and all(limit in (0, 1) for limit in limits)
    return number // 4 if is_only else number


def _samplings(obj: Any, texts: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the sampling parameters of a body, and how many of its texts each are for."""
    samplings = obj.sampling_params
    for one in filter(None, samplings if isinstance(samplings, list) else [samplings]):
        yield one, 1 if isinstance(samplings, list) else max(texts, 1)


def _listed(value: Any) -> list[str]:
    """Return the texts of a field that has one text or a list."""
    given = value if isinstance(value, list) else [value]
    return [one for one in given if isinstance(one, str)]


def _check_texts(manager: Any, obj: Any, texts: int) -> None:
    """Check the prompts of a body, as far as they are not tokenized."""
    text, ids = obj.text, obj.input_ids
    if text is not None:
        given: list[Any] = text if texts else [text]
        for one in given:
            if not isinstance(one, str) and not (_is_pair(one) and _is_embedding(obj)):
                raise RequestError(f"text: expected a text, or a list of texts, got {shown(one)}")
        _check_characters(manager, [one if isinstance(one, str) else "".join(one) for one in given])
        if "" in given:
            tokenizer = manager.tokenizer
            alone = not getattr(obj, "session_params", None) and not obj.contains_mm_input()
            if alone and tokenizer is not None and not tokenizer.encode(""):
                raise RequestError(_EMPTY)
    elif isinstance(ids, list) and ([] in ids if texts else not ids and _is_embedding(obj)):
        raise RequestError("input_ids: expected a token id or more in each prompt, got none")
    if not texts:  # those of a list are checked one by one, with other requests between them
        for _ in check_prompts(manager, obj):
            pass


def _is_pair(text: Any) -> bool:
    """Tell whether a text is a pair of texts, for a model that compares them."""
    return isinstance(text, list) and [type(one) for one in text] == [str, str]


def _is_embedding(obj: Any) -> bool:
    """Tell whether a body is for an embedding, whose texts may be pairs."""
    return not hasattr(obj, "return_logprob")


def _check_characters(manager: Any, texts: list[Any]) -> None:
    check_characters(texts, manager.model_config.context_len)


def _check_labels(manager: Any, labels: Mapping[str, str]) -> None:
    """Refuse labels that SGLang's metrics do not have: they end its HTTP process."""
    options = manager.server_args
    known = options.tokenizer_metrics_allowed_custom_labels or ()
    if options.enable_metrics and not labels.keys() <= {*known}:
        raise RequestError(
            f"custom_labels: expected labels of --tokenizer-metrics-allowed-custom-labels "
            f"({', '.join(known) or 'none'}), got {shown(next(iter(labels.keys() - {*known})))}; "
            "leave it out"
        )


def check_not_empty(tokenized: Any) -> None:
    """Refuse a prompt without tokens, which ends SGLang's scheduler.

    Args:
        tokenized: SGLang's request, tokenized.

    Raises:
        RequestError: It has no tokens, and no embeddings, media or session in their place.
    """
    ids = getattr(tokenized, "input_ids", None)
    others = ("mm_inputs", "input_embeds", "session_params")
    if ids is not None and not ids and not any(getattr(tokenized, one, None) for one in others):
        raise RequestError(_EMPTY)
