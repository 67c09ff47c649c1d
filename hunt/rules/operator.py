"""Rules of the operator's word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hunt import thinking
from hunt.answers import answers_of
from hunt.rules.told import Found, told_of

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.servers import Kind


def never_banned_text(asked: Asked, kind: Kind) -> Found:
    """No client gets a text or token that an always-rule bans, in any field of any event."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        for answer in answers_of(sent.path, reply):
            # An error may end an answer whose first events are right.
            sort = sent.path + (", with an error" if [*reply.errors()] else "")
            for word in kind.banned:
                for text in answer.everything:
                    if word in text:
                        yield sort, f"banned {word!r} in {text[:300]!r}"
            if came := {*(answer.token_ids or ())} & {*kind.banned_ids}:
                yield sort, f"banned {sorted(came)} in {answer.token_ids}"


def profiles_hold(asked: Asked, kind: Kind) -> Found:
    """An answer has only the tokens that its profile allows."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        allowed = kind.allowed(sent.body.get("custom_logit_processor"))
        for answer in answers_of(sent.path, reply) if allowed else ():
            if more := {*(answer.token_ids or ())} - {*allowed}:
                yield sent.path, f"{sorted(more)} came, the profile allows {[*allowed]}"


def always_beginning(asked: Asked, kind: Kind) -> Found:
    """Every answer begins with the text that an always-rule forces, or is cut within it."""
    begins = kind.beginning
    for told in told_of(asked) if begins else ():
        text = told.answer.texts.get("text")
        if text is None or told.wish.may_stop:
            continue
        if not (text.startswith(begins) or begins.startswith(text)):
            yield told.sort, f"{text!r} does not begin with {begins!r}"


def least_length(asked: Asked, kind: Kind) -> Found:
    """No answer ends by itself before the tokens that an always-rule demands."""
    for told in told_of(asked) if kind.least else ():
        answer = told.answer
        ids = answer.token_ids
        if ids is None or answer.finish != "stop" or told.wish.may_stop or not told.is_whole:
            continue
        if len(ids) <= kind.least and not isinstance(answer.matched, str):
            yield told.sent.path, f"ended after {len(ids)} tokens, expected more than {kind.least}"


def ceilings_on_thinking(asked: Asked, kind: Kind) -> Found:
    """No block has more reasoning, by SGLang's parser, than the ceiling; nor all blocks together.

    A tool start that had begun may be finished.
    """
    most, total = kind.ceiling("thinking_budget"), kind.ceiling("total_thinking_tokens")
    if most is None:
        return
    for told in told_of(asked):
        answer, begun = told.answer, told.wish.begun
        counts = []
        for name in ("text", "content"):
            if name in answer.texts and not (kind.parser and name == "content"):
                found = thinking.blocks(begun, answer.texts[name])
                counts += [(thinking.tokens_of(thought), 1, thought) for thought in found]
        if total is not None and sum(count for count, _, _ in counts) > total:
            yield "total", f"{counts} exceed the ceiling of {total} on all blocks"
        if kind.parser:
            counts += [
                (thinking.tokens_of(thought), count, thought)
                for thought, count in thinking.returned(answer, told.sent.body)
            ]
        for count, many, thought in counts:
            if count > most * many:
                yield told.sent.path, f"{count} tokens of reasoning, ceiling {most}: {thought!r}"
