"""The checks of the table of SGLang's fields, compiled once, for both gates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress
from operator import is_not, itemgetter
from typing import Any, get_args, get_origin

import msgspec
import numpy as np

from sglang_lp.errors import RequestError, did_you_mean, shown
from sglang_lp.params.messages import described
from sglang_lp.server.gate.grammars import check_grammars
from sglang_lp.server.gate.request_fields import BODY, GRAMMARS, SAMPLING, FieldRow, names_of
from sglang_lp.server.gate.stop_regex import check_stop_regex

#: Length from which on NumPy checks a list of ids.
_LONG = 256


def check_sampling(sampling: Mapping[str, Any], vocab_size: int) -> None:
    """Check one text's sampling parameters, as a client or an endpoint of SGLang's gives them.

    Args:
        sampling: Names and values.
        vocab_size: Number of logits in a row.

    Raises:
        RequestError: A field is unknown, out of range or of another type.
    """
    _convert(sampling, _Sent, sampling.get)
    _check_meaning(sampling.get, vocab_size)
    steps_of(sampling.get("stop_regex"), sampling.get("stop"))


def check_body(obj: Any, vocab_size: int, *, many: bool) -> None:
    """Check the fields of a body except its texts and its sampling parameters.

    Args:
        obj: SGLang's ``GenerateReqInput`` or ``EmbeddingReqInput``, before SGLang normalizes it.
        vocab_size: Number of logits in a row.
        many: Whether it is a list of texts or copies, whose fields may be lists as well.

    Raises:
        RequestError: A field is out of range or of another type.
    """
    kind: Any = type(obj)
    fields = vars(obj)
    names, read, defaults = _defaults_of(kind)
    often = {name: fields[name] for name in _OFTEN if name in fields}
    _convert(often, _OftenList if many else _OftenSingle, often.get)
    _check_overrides(obj, many=many)
    _check_tensors(obj)
    if not _are_equal(values := read(fields), defaults):
        rare = dict(compress(zip(names, values, strict=True), map(is_not, values, defaults)))
        _convert(rare, _List if many else _Single, rare.get)
        _check_session(rare.get("session_params"))
        check_pooling(obj)
        if ids := rare.get("token_ids_logprob"):
            flat = (i for one in ids for i in (one if isinstance(one, list) else (one,)))
            check_token_ids("token_ids_logprob", flat, vocab_size)
    if tops := often.get("top_logprobs_num"):
        _check_top(max(one or 0 for one in tops) if isinstance(tops, list) else tops, vocab_size)


def _are_equal(values: Any, defaults: Any) -> bool:
    """Tell whether all values are the defaults; 0 is as good as ``False``."""
    try:
        return bool(values == defaults)
    except ValueError:  # of an array, which is no value of any field
        return False


def _check_session(session: Any) -> None:
    if session and session.get("replace") and session.get("rid") is None:
        raise RequestError(
            "session_params: expected the rid of the request to replace, got none; name it, or "
            "leave out replace"
        )


def check_pooling(request: Any) -> None:
    """Refuse positions in a prompt of which SGLang may take a part from its cache.

    Args:
        request: A body, or the request that SGLang made of it.

    Raises:
        RequestError: ``logprob_start_len`` is not 0, with which SGLang computes the whole prompt.
    """
    for name in POSITIONS:
        if getattr(request, name, None) is not None:
            start = getattr(request, "logprob_start_len", 0)  # an embedding has none
            if any(start) if isinstance(start, list) else start != 0:
                raise RequestError(
                    f"{name}: expected logprob_start_len 0 with it, as /v1/score sends both, got "
                    f"{shown(start)}; leave it out"
                )


def check_positions(request: Any, ids: Any) -> None:
    """Check the fields that are positions in a prompt.

    Args:
        request: A request that SGLang has tokenized, or its ``Req``.
        ids: Token ids of the prompt, or ``None``.

    Raises:
        RequestError: A position is not in the prompt.
    """
    for name in POSITIONS:
        given = getattr(request, name, None)
        if given and not 0 <= min(given) <= max(given) < len(ids or ()):
            raise RequestError(
                f"{name}: expected positions in the prompt of {len(ids or ())} tokens, got "
                f"{max(given) if min(given) >= 0 else min(given)}"
            )


def check_embeddings(request: Any, process: Any) -> None:
    """Refuse embeddings of another width than the model's, with which SGLang's scheduler ends.

    Args:
        request: A request that SGLang has tokenized.
        process: SGLang's ``TokenizerManager`` or ``Scheduler``.

    Raises:
        RequestError: They have another width.
    """
    given = getattr(request, "positional_embed_overrides", None)
    if given is None:
        return
    width, came = process.model_config.hidden_size, given.embeds.shape
    if tuple(came[1:]) != (width,):
        raise RequestError(
            f"positional_embed_overrides: expected embeddings of {width} numbers, the width of the "
            f"served model, got {came[-1]}"
        )


def lengths(obj: Any) -> dict[str, int]:
    """Return the lengths of the fields of a body that have a value for each of its texts.

    Args:
        obj: The body, a list of texts that :func:`check_body` has passed.
    """
    given = ((name, getattr(obj, name, None)) for name in _EACH)
    listed = {name: value for name, value in given if isinstance(value, list)}
    ids = listed.get("token_ids_logprob")
    if ids is not None and not any(isinstance(one, list) for one in ids):
        del listed["token_ids_logprob"]  # for all texts
    return {name: len(value) for name, value in listed.items()}


def check_received(req: Any, vocab_size: int | None) -> None:
    """Check a request that its scheduler has received, by whichever front end it came.

    Args:
        req: SGLang's ``Req``, just made.
        vocab_size: Number of logits in a row, or ``None``.

    Raises:
        RequestError: A field is out of range.
    """
    sampling = req.sampling_params
    _convert(sampling, _Received, lambda name: getattr(sampling, name))
    size = vocab_size or 2**31
    _check_meaning(lambda name: getattr(sampling, name, None), size)
    steps_of(getattr(sampling, "stop_regex_strs", None), getattr(sampling, "stop_strs", None))
    logprob = getattr(req, "logprob", None)
    if logprob is not None:
        if logprob.top_logprobs_num:
            _check_top(logprob.top_logprobs_num, size)
        if logprob.token_ids_logprob:
            check_token_ids("token_ids_logprob", logprob.token_ids_logprob, size)
    check_positions(req, req.origin_input_ids)
    _check_overrides(req, many=False)


def steps_of(patterns: Any, stop: Any) -> int:
    """Return most steps of the matcher at one token.

    Args:
        patterns: ``stop_regex`` of a request, or ``None``.
        stop: Its ``stop``, or ``None``.

    Raises:
        RequestError: A pattern is invalid, or takes too many steps.
    """
    if not patterns:
        return 0
    texts = [stop] if isinstance(stop, str) else stop or ()
    return check_stop_regex(patterns, max(map(len, texts), default=0))


def check_token_ids(name: str, ids: Iterable[int | None], vocab_size: int) -> None:
    """Check that token ids are in the vocabulary.

    Args:
        name: Name of the field, for the message.
        ids: The ids; ``None`` is no id.
        vocab_size: Number of logits in a row.

    Raises:
        RequestError: An id is negative, or ``vocab_size`` or more.
    """
    known = [one for one in ids if one is not None]
    if not known:
        return
    if len(known) < _LONG:
        least, most = min(known), max(known)
    else:
        numbers = np.asarray(known)
        least, most = int(numbers.min()), int(numbers.max())
    if least < 0 or most >= vocab_size:
        raise RequestError(
            f"{name}: expected token ids of the served model, 0 to {vocab_size - 1}, got "
            f"{shown(least if least < 0 else most)}; these ids are probably another model's"
        )


def _mirror(rows: Iterable[FieldRow], names: Iterable[str], *, each: bool, strict: bool) -> Any:
    """Return msgspec's type with the fields of some rows.

    Args:
        rows: The rows.
        names: The fields to leave out.
        each: Whether a field may be a list of values.
        strict: Whether other fields are refused.
    """
    fields = []
    for name, row in names_of(tuple(rows)).items():
        if name not in names:
            kind = _per_text(row.type) if each and row.each else row.type
            # SGLang counts with n before it replaces null.
            fields.append((name, kind if kind is None or name == "n" else kind | None, None))
    return msgspec.defstruct("Fields", fields, forbid_unknown_fields=strict)


def _per_text(kind: Any) -> Any:
    """Return the type of a field that has one value for all texts, or a list of values."""
    if get_origin(kind) is list:
        (entry,) = get_args(kind)
        return list[entry | list[entry] | None]  # type: ignore[valid-type]
    return kind | list[kind | None]


@lru_cache(maxsize=8)
def _defaults_of(kind: Any) -> tuple[Sequence[str], Callable[[Any], Any], Sequence[Any]]:
    """Return the fields of a class of bodies that few requests set, their getter and defaults."""
    checked = names_of(BODY).keys() - {*_OTHERS, *_OFTEN}
    fields = {one.name: one.default for one in dataclasses.fields(kind) if one.name in checked}
    return (*fields,), itemgetter(*fields), (*fields.values(),)


def _convert(given: Any, kind: Any, read: Any) -> None:
    """Check types and ranges.

    Args:
        given: An object or a dict.
        kind: Its mirror.
        read: Return a field of the object, given its name.

    Raises:
        RequestError: They do not fit.
    """
    try:
        msgspec.convert(given, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        name, problem = described(kind, read, str(error))
        if name is None:
            unknown = problem.rpartition(" ")[2]
            hint = did_you_mean(unknown, names_of(SAMPLING))
            problem = f"no such field {shown(unknown)}{hint or '; leave it out'}"
        raise RequestError(f"{name or 'sampling_params'}: {problem}") from None


def _check_meaning(read: Any, vocab_size: int) -> None:
    """Check sampling parameters whose range is no type: the vocabulary, a text's own form, others.

    Args:
        read: Return a sampling parameter, or ``None``, given its name.
        vocab_size: Number of logits in a row.
    """
    stops, bias = read("stop_token_ids"), read("logit_bias")
    if stops:
        check_token_ids("stop_token_ids", stops, vocab_size)
    if read("min_new_tokens"):
        _check_least(read, vocab_size)
    check_grammars(read)
    if bias:
        try:
            check_token_ids("logit_bias", [int(key) for key in bias], vocab_size)
        except ValueError as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                "logit_bias: expected token ids as keys, got something else; write them in digits"
            ) from None


def _check_least(read: Any, vocab_size: int) -> None:
    """Refuse a least length with which a row could have no token; see :func:`_check_meaning`."""
    grammar = next((name for name in GRAMMARS if read(name) is not None), None)
    if grammar is not None:
        reason = (
            f"with a grammar, which decides when the answer may end (here {grammar}; "
            "response_format and tool_choice set one as well)"
        )
    elif len({*(read("stop_token_ids") or ())}) >= vocab_size:
        reason = "with every token in stop_token_ids, as no token may begin the answer"
    else:
        return
    raise RequestError(
        f"min_new_tokens: expected 0 {reason}, got {read('min_new_tokens')}; leave out one of them"
    )


def _check_top(number: int, vocab_size: int) -> None:
    if not 0 <= number <= vocab_size:
        raise RequestError(
            f"top_logprobs_num: expected at most {vocab_size}, the tokens of the served model, got "
            f"{shown(number)}; ask for fewer"
        )


def _check_overrides(obj: Any, *, many: bool) -> None:
    """Refuse overrides that are not the objects which SGLang makes of ``embed_overrides``."""
    given = getattr(obj, "positional_embed_overrides", None)
    if given is None:
        return
    listed = many and isinstance(given, list)
    for one in given if listed and given else (given,):
        if not (listed and one is None) and not hasattr(one, "reconstruct"):
            raise RequestError(
                "positional_embed_overrides: expected nothing, because JSON cannot give it, got "
                f"{shown(one)}; use embed_overrides"
            )


def _check_tensors(embedding: Any) -> None:
    """Refuse overrides in a body for embeddings of which no endpoint of SGLang's made tensors."""
    given = getattr(embedding, "embed_overrides", None)  # a body to generate has none
    if given is None:
        return
    texts = given if isinstance(given, list) else [given]
    for one in chain.from_iterable(text if isinstance(text, list) else [text] for text in texts):
        if one is not None and not hasattr(one, "dim"):
            raise RequestError(
                "embed_overrides: expected nothing, because this route makes no tensors of it, got "
                f"{shown(one)}; use /v1/embeddings"
            )


_EACH = tuple(name for name, row in names_of(BODY).items() if row.each)
POSITIONS = ("token_indices_to_pool", "multi_item_delimiter_indices")
_OTHERS = ("text", "input_ids", "sampling_params")
#: Fields that SGLang's endpoints set in most bodies.
_OFTEN = (
    *("rid", "stream", "return_logprob", "logprob_start_len", "top_logprobs_num"),
    *("return_text_in_logprobs", "require_reasoning"),
)
#: Fields that SGLang's processes have in other forms than clients, or do not read again.
_FRONT = ("stop", "stop_regex", "n", "custom_params", "watermark")
_MADE = ("stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len", "is_normalized")
_Sent = _mirror(SAMPLING, (), each=False, strict=True)
_Received = _mirror(SAMPLING, (*_FRONT, *_MADE), each=False, strict=False)
_Single = _mirror(BODY, (*_OTHERS, *_OFTEN), each=False, strict=False)
_List = _mirror(BODY, (*_OTHERS, *_OFTEN), each=True, strict=False)
_RARE = names_of(BODY).keys() - {*_OFTEN}
_OftenSingle = _mirror(BODY, _RARE, each=False, strict=False)
_OftenList = _mirror(BODY, _RARE, each=True, strict=False)
