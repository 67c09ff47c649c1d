"""Rules of the request's own word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hunt.rules.told import Found, told_of
from support.catalogues import served_items

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.servers import Kind
    from hunt.wishes import Wish


#: Of a sum of probabilities.
_ROUNDING = 1e-6


def own_bans(asked: Asked, _kind: Kind) -> Found:
    """A text that a request bans is in none of its answer's texts."""
    for told in told_of(asked):
        # A piece of a log probability is no text of an answer.
        texts = told.answer.texts.values()
        for name, params in told.wish.everywhere:
            if params.get("whole_words") or params.get("resumed_tokens"):
                continue
            given = {"BadWordsLogitProcessor": "words", "DisallowedTokensLogitsProcessor": "texts"}
            for word in params.get(given.get(name, ""), None) or ():
                if any(word in text for text in texts) and (
                    name == "BadWordsLogitProcessor" or len(word) == 1
                ):
                    yield name, f"{word!r} is in {[*texts]}"


def own_tokens(asked: Asked, _kind: Kind) -> Found:
    """No answer, and no beam, has a token that its request bans or does not allow."""
    for told in told_of(asked):
        came = {*(told.answer.token_ids or ())}
        for name, params in told.wish.everywhere:
            listed = params.get("token_ids")
            if not isinstance(listed, list) or not all(isinstance(one, int) for one in listed):
                continue
            if name == "DisallowedTokensLogitsProcessor" and came & {*listed}:
                yield name, f"{sorted(came & {*listed})} came, of the banned {listed}"
            if name == "AllowedTokensLogitProcessor" and came - {*listed}:
                yield name, f"{sorted(came - {*listed})} came, only {listed} are allowed"


def own_fields(asked: Asked, _kind: Kind) -> Found:
    """An answer has allowed tokens only, no n-gram twice, and ends soon after a repetition."""
    for told in told_of(asked):
        ids, body = told.answer.token_ids, told.sent.body
        if ids is None or told.wish.params.get("resumed_tokens"):
            continue
        allowed, size = body.get("allowed_token_ids"), body.get("no_repeat_ngram_size")
        if allowed and not told.wish.may_split and not {*ids} <= {*allowed}:
            yield "allowed_token_ids", f"{ids} are not all of {allowed}"
        grams = [(*ids[at : at + size],) for at in range(len(ids) - size + 1)] if size else []
        if len({*grams}) < len(grams):
            yield "no_repeat_ngram_size", f"{size} tokens come twice in {ids}"
        sizes = body.get("repetition_detection")
        # The answer ends with the token that is sampled then.
        if sizes and any(_repeats(ids[:end], sizes) for end in range(len(ids) - 1)):
            yield "repetition_detection", f"{sizes}: {ids} goes on after a repetition"


def _repeats(ids: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Tell whether tokens end with a pattern that comes several times in a row."""
    least, count = max(1, sizes.get("min_pattern_size", 0)), sizes["min_count"]
    return any(
        len(ids) >= size * count and [*ids[-size * count :]] == [*ids[-size:]] * count
        for size in range(least, sizes["max_pattern_size"] + 1)
    )


def own_choice(asked: Asked, _kind: Kind) -> Found:
    """An answer with choices that ends by itself is one of them, and else begins one."""
    for told in told_of(asked):
        text = told.answer.texts.get("text")
        for name, params in told.wish.everywhere:
            choices = params.get("choices")
            if name != "ChoiceLogitProcessor" or text is None or not isinstance(choices, list):
                continue
            if told.wish.may_stop or "eos_token_ids" in params or _is_steered(told.wish):
                continue
            ended = told.answer.finish == "stop" and told.is_whole
            begun = text.rstrip("\ufffd")  # of a character that was cut
            if not any(text == one if ended else one.startswith(begun) for one in choices):
                yield name, f"{text!r} is none of {choices}"


def own_pick(asked: Asked, _kind: Kind) -> Found:
    """The probabilities of choices add up to one, and a picked text is the answer."""
    for told in told_of(asked):
        report, text = told.answer.report, told.answer.texts.get("text")
        choices = report.get("choices") if isinstance(report, Mapping) else None
        if choices is None:
            continue
        scored = choices["texts"]
        whole = sum(one["probability"] for one in scored)
        if abs(whole - 1) > _ROUNDING:
            yield "sum", f"the probabilities of {scored} add up to {whole}"
        if "picked" not in choices or text is None or told.wish.may_stop or _is_steered(told.wish):
            continue
        picked = scored[choices["picked"]].get("text")
        ended = told.answer.finish == "stop" and told.is_whole
        if ended and picked is not None and text != picked:
            yield "picked", f"{picked!r} was picked, and {text!r} came"


def own_items(asked: Asked, _kind: Kind) -> Found:
    """Every item of an answer is in the catalogue and in the request's sets, and not left out."""
    for told in told_of(asked):
        for name, params in told.wish.processors:
            if name != "CatalogueLogitProcessor" or told.wish.params.get("resumed_tokens"):
                continue
            token_ids = told.answer.token_ids
            if token_ids is None or not told.is_whole:
                continue
            may = _allowed_items(params)
            for item in _items_in(token_ids, params):
                if not any(one[: len(item)] == item for one in may):
                    yield name, f"{item} begins no item that {dict(params)} allows"


def _allowed_items(params: Mapping[str, Any]) -> set[tuple[int, ...]]:
    by_tokens: dict[tuple[int, ...], tuple[set[str], set[str]]] = {}
    for item, tokens, sets in served_items():
        ids, own = by_tokens.setdefault(tokens, (set(), set()))
        ids.add(item)
        own.update(sets)
    left_out, only = {*(params.get("exclude") or ())}, params.get("only")
    return {
        tokens
        for tokens, (ids, sets) in by_tokens.items()
        if not ids & left_out
        and (only is None or ids & {*only})
        and all(sets & {*group.split("|")} for group in params.get("subset") or ())
    }


def _items_in(token_ids: Sequence[int], params: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of each item, the last perhaps cut: three in a row, after each trigger."""
    trigger, at = [*(params.get("trigger_token_ids") or ())], 0
    for _ in range(params.get("max_items", 1)):
        while trigger and [*token_ids[max(0, at - len(trigger)) : at]] != trigger:
            at += 1
            if at > len(token_ids):
                return
        if at >= len(token_ids):
            return
        yield tuple(token_ids[at : at + 3])
        at += 3 + bool(trigger)


def own_beginning(asked: Asked, _kind: Kind) -> Found:
    """An answer begins with the text that its request forces, or is cut within it."""
    for told in told_of(asked):
        text = told.answer.texts.get("text")
        for name, params in told.wish.everywhere:
            begins = params.get("text")
            if name != "ForcedSequenceLogitProcessor" or not isinstance(begins, str):
                continue
            if text is None or told.wish.may_stop or _is_steered(told.wish):
                continue
            begun = text.rstrip("\ufffd")  # of a character that was cut
            if not (text.startswith(begins) or begins.startswith(begun)):
                yield name, f"{text!r} does not begin with {begins!r}"


def own_scripts(asked: Asked, _kind: Kind) -> Found:
    """No letter of a script that a request bans everywhere comes out."""
    for told in told_of(asked):
        for name, params in told.wish.everywhere:
            scripts = params.get("scripts")
            if (
                name != "ScriptLogitProcessor"
                or params.get("mode") != "ban"
                or not isinstance(scripts, list)
            ):
                continue
            # Markup that was added to the vocabulary is free.
            text = re.sub("<[^>]*>", "", told.answer.texts.get("text", ""))
            for letter in text:
                script = unicodedata.name(letter, "").partition(" ")[0].capitalize()
                if script in scripts and letter.isalpha():
                    yield name, f"{letter!r} of {script} is in {text!r}"


def _is_steered(wish: Wish) -> bool:
    """Tell whether a text that is forced need not begin the answer."""
    return bool(wish.params.get("resumed_tokens")) or wish.sampling.get("ignore_eos") is True
