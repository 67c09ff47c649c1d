"""Answers of a case, each with its request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from hunt.answers import Answer, Reply, answers_of
from hunt.wishes import Wish, wish_of

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.sent import Sent

__all__ = ["Found", "Told", "told_of"]

#: A word that tells one fault from others, and a sentence.
Found = Iterator[tuple[str, str]]


class Told(NamedTuple):
    """An answer with its request."""

    sent: Sent
    reply: Reply
    answer: Answer
    wish: Wish

    @property
    def is_whole(self) -> bool:
        """Whether the client waited for the end, and the answer did not end with an error."""
        return not self.reply.is_cut and not [*self.reply.errors()]

    @property
    def sort(self) -> str:
        """The endpoint, and whether the answer is whole."""
        return self.sent.path + ("" if self.is_whole else ", not whole")


def told_of(asked: Asked) -> Iterator[Told]:
    """Yield the answers of the requests whose fields all have values of their types."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        for place, answer in enumerate(() if sent.odd else answers_of(sent.path, reply)):
            wish = wish_of(sent, place)
            if wish.searches_beams and answer.finish == "abort":
                continue  # a beam search that failed has SGLang's placeholders for tokens
            yield Told(sent, reply, answer, wish)
