"""Rules of requests and each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hunt.answers import Answer, answers_of
from hunt.rids import ABORT
from hunt.sent import GENERATE
from hunt.wishes import names_of, wish_of

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.rules.told import Found
    from hunt.servers import Kind


def same_alone(asked: Asked, _kind: Kind) -> Found:
    """A canary, asked next to a case, gets the same tokens as without the case."""
    if any(sent.path == ABORT and sent.body.get("abort_all") for sent in asked.sent):
        return  # it ends every request, as SECURITY.md says
    number, reply = asked.canary
    pairs = [answers_of(GENERATE, one) for one in (asked.alone, reply)]
    alone, beside = ([answer.token_ids for answer in answers] for answers in pairs)
    if reply.status == 0 and any(sent.is_endless for sent in asked.sent):
        return  # it waited for room
    if alone != beside:
        yield str(number), f"canary {number}: {beside or [*reply.errors()]}, alone {alone}"


def nobody_ends_another(asked: Asked, _kind: Kind) -> Found:
    """An answer ends by itself, or by its own client, and not by another client's request."""
    aborted = [sent.body.get("rid") for sent in asked.sent if sent.path == ABORT]
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        rid = sent.body.get("rid")
        if sent.odd or not rid or rid in aborted or reply.is_cut or reply.status != 200:
            continue
        if any(one.body.get("rid") == rid for one in asked.sent if one is not sent):
            continue  # which of the two is refused is not told
        for answer in answers_of(sent.path, reply):
            if answer.finish not in {"stop", "length"}:
                yield sent.path, f"{rid} ended with {answer.finish} after {answer.token_ids}"[:300]


def copies_are_equal(asked: Asked, _kind: Kind) -> Found:
    """Greedy copies of one request get the same tokens, unless SGLang penalizes tokens in them."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        answers = answers_of(sent.path, reply) if not sent.odd else []
        wishes = [wish_of(sent, place) for place in range(len(answers))]
        by_wish: dict[str, list[Answer]] = {}
        for wish, answer in zip(wishes, answers, strict=True):
            if wish.searches_beams or wish.has_penalty:
                continue
            if wish.is_greedy and answer.finish in {"stop", "length"}:
                by_wish.setdefault(str(wish), []).append(answer)
        for same in by_wish.values():
            if any(one.texts != same[0].texts for one in same) and not reply.is_cut:
                yield ", ".join(names_of(sent)), f"copies differ: {[one.texts for one in same]}"
