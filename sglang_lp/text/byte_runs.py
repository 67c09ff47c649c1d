"""Byte fallback: byte tokens one after the other come out together, or not at all.

A decoder with byte fallback waits until such a run of byte tokens ends. Then it becomes the
characters that it spells or, if any byte of it makes none, one U+FFFD for each of its bytes: a
wrong byte takes back what was right before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile

from sglang_lp.edits.ids import Ids, lasting
from sglang_lp.text.utf8 import lacking, unfinished

#: Stands in a text for a run, or the rest of one, that makes no characters. No character has it.
BROKEN = b"\xff"

#: Tokens of a run that are read back; one that is longer counts as broken.
_LONGEST = 256


class ByteRuns:
    """What the byte tokens of a vocabulary do to a text.

    Attributes:
        tokens: The bytes of each token of the vocabulary.
        ids: Their ids; none if bytes that make no character leave others alone.
    """

    def __init__(self, tokens: Sequence[bytes], ids: frozenset[int]) -> None:
        self.tokens = tokens
        self.ids = ids

    @cached_property
    def listed(self) -> Ids | list[int]:
        """The same ids, to be banned."""
        return lasting(sorted(self.ids))

    def leaving_open(self, vocab_size: int) -> Ids | list[int]:
        """Return the tokens with which no run ends: those of bytes, and those without text."""
        return _leaving_open(self, vocab_size)

    def joined(self, text: bytes, token_id: int) -> bytes:
        """Return a text with one more token, and ``BROKEN`` where a run has become invalid.

        Args:
            text: What this returned before, or the last three bytes of it; nothing at the start.
            token_id: One without text, a special one, changes nothing.
        """
        token = self.tokens[token_id] if 0 <= token_id < len(self.tokens) else b""
        if not self.ids or not token:
            return text + token
        run = self.unsettled(text)
        if token_id not in self.ids:
            return text + (BROKEN if run else b"") + token
        if run == BROKEN:
            return text
        run += token
        return text + (token if _is_text(run[: len(run) - unfinished(run)]) else BROKEN)

    def unsettled(self, text: bytes) -> bytes:
        """Return what keeps the run that a text ends with from being whole.

        Args:
            text: What ``joined`` returned.

        Returns:
            The beginning of a character, or ``BROKEN``; nothing if it is whole, or there is none.
        """
        if not self.ids:
            return b""
        return BROKEN if text.endswith(BROKEN) else text[len(text) - unfinished(text) :]

    def after(self, token_ids: Sequence[int]) -> Ids | Sequence[int]:
        """Return the tokens that may not come after others, for the text of those to stand.

        Args:
            token_ids: Those of a text; or of a part of one, after which any may come.
        """
        run = [*takewhile(self.ids.__contains__, reversed(token_ids))]
        spelled = b"".join(self.tokens[token_id] for token_id in reversed(run))
        return self.listed if run and _is_text(spelled) else ()

    def left_open(self, token_ids: Sequence[int]) -> bytes:
        """Return what keeps the run that an output ends with from being whole.

        Args:
            token_ids: The output. Its last 256 tokens are read, and a run that is longer counts as
                broken.

        Returns:
            As ``unsettled`` does.
        """
        if not self.ids:
            return b""
        run = [*takewhile(self._going_on.__contains__, reversed(token_ids[-_LONGEST:]))]
        spelled = b"".join([self.tokens[token_id] for token_id in reversed(run)])
        rest = len(spelled) - unfinished(spelled)
        return spelled[rest:] if len(run) < _LONGEST and _is_text(spelled[:rest]) else BROKEN

    def breaking(self, token_ids: Sequence[int]) -> Ids | list[int]:
        """Return the byte tokens after which the run that an output ends with is not whole."""
        left = self.left_open(token_ids)
        if left and lacking(left) != 1:
            return self.listed
        return self._breaking[bool(left)]

    @cached_property
    def _breaking(self) -> Sequence[Ids | list[int]]:
        """The byte tokens that break a whole run, and those that break one that lacks a byte."""
        return [
            lasting([i for i in sorted(self.ids) if self.unsettled(self.joined(run, i))])
            for run in (b"", b"\xc3")
        ]

    @cached_property
    def _going_on(self) -> frozenset[int]:
        """The tokens with which no run ends."""
        return frozenset(self.leaving_open(len(self.tokens)))


#: Of a vocabulary without byte tokens.
NO_RUNS = ByteRuns((), frozenset())


@lru_cache(maxsize=4)
def _leaving_open(runs: ByteRuns, vocab_size: int) -> Ids | list[int]:
    known = enumerate(runs.tokens[:vocab_size])
    return lasting([token_id for token_id, token in known if not token or token_id in runs.ids])


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
