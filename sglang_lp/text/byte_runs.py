"""Byte fallback: consecutive byte tokens, a run, come out together or not at all.

A decoder with byte fallback waits until a run ends. The run becomes the characters that it spells.
If any byte of it makes no character, it becomes one U+FFFD for each of its bytes: a wrong byte
spoils the right bytes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile

from sglang_lp.edits.ids import Ids, lasting
from sglang_lp.text.utf8 import lacking, unfinished

#: Replaces a run, or the rest of a run, that makes no characters. No character has this byte.
BROKEN = b"\xff"

#: Most tokens of a run that are read back; a longer run counts as broken.
_LONGEST = 256


class ByteRuns:
    """The byte tokens of a vocabulary, and the state of the run that a text ends with.

    Attributes:
        tokens: The bytes of each token of the vocabulary.
        ids: The byte tokens; empty if a wrong byte does not spoil the bytes around it.
    """

    def __init__(self, tokens: Sequence[bytes], ids: frozenset[int]) -> None:
        self.tokens = tokens
        self.ids = ids

    @cached_property
    def listed(self) -> Ids | list[int]:
        """The byte tokens, as a list to be banned."""
        return lasting(sorted(self.ids))

    def leaving_open(self, vocab_size: int) -> Ids | list[int]:
        """Return the tokens that do not end a run: byte tokens and tokens without text."""
        return _leaving_open(self, vocab_size)

    def joined(self, text: bytes, token_id: int) -> bytes:
        """Return a text with one more token, and ``BROKEN`` where a run has become invalid.

        Args:
            text: The text before, or its last three bytes; empty at the start.
            token_id: A token without text, such as a special token, changes nothing.
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
        """Return the unfinished end of the run that a text ends with.

        Args:
            text: A text that ``joined`` returned.

        Returns:
            The beginning of a character, or ``BROKEN``; nothing if the run is whole, or absent.
        """
        if not self.ids:
            return b""
        return BROKEN if text.endswith(BROKEN) else text[len(text) - unfinished(text) :]

    def corrupting(self, token_ids: Sequence[int]) -> Ids | Sequence[int]:
        """Return the tokens that would corrupt the preceding text.

        Args:
            token_ids: The tokens of a text. After a part of a character any token may come.
        """
        run = [*takewhile(self.ids.__contains__, reversed(token_ids))]
        spelled = b"".join(self.tokens[token_id] for token_id in reversed(run))
        return self.listed if run and _is_text(spelled) else ()

    def left_open(self, token_ids: Sequence[int]) -> bytes:
        """Return the unfinished end of the run that an output ends with.

        Args:
            token_ids: The output. Its last 256 tokens are read; a longer run counts as broken.

        Returns:
            As :meth:`unsettled`.
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
        """The byte tokens that break a whole run, and those for a run that lacks a byte."""
        return [
            lasting([i for i in sorted(self.ids) if self.unsettled(self.joined(run, i))])
            for run in (b"", b"\xc3")
        ]

    @cached_property
    def _going_on(self) -> frozenset[int]:
        """The tokens that do not end a run."""
        return frozenset(self.leaving_open(len(self.tokens)))


#: For a vocabulary without byte tokens.
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
