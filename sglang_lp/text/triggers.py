"""Waiting for a trigger in the output: a sequence of tokens, or a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sglang_lp.errors import InvalidParameter, shown
from sglang_lp.text.automaton import automaton_of
from sglang_lp.text.characters import MOST_LACKING
from sglang_lp.text.encoding import served_vocabulary

if TYPE_CHECKING:
    from sglang_lp.text.byte_runs import ByteRuns

__all__ = ["Trigger", "text_trigger", "token_trigger"]


class Trigger(Protocol):
    """Waits for a trigger; the part that has come is a number of tokens, or a text."""

    @property
    def start(self) -> Any:
        """The part that has come before the first token, and after a trigger."""

    def step(self, begun: Any, token_id: int) -> Any:
        """Return the part after one more token, ``None`` if the token completes the trigger."""

    def lacking(self, begun: Any) -> int:
        """Return how many tokens complete the trigger at the earliest."""


def token_trigger(token_ids: tuple[int, ...]) -> Trigger:
    """Return the trigger that is a sequence of tokens."""
    return _Tokens(token_ids)


def text_trigger(processor: str, name: str, tokenizer: Any, text: str) -> Trigger:
    """Return the trigger that is a text, whichever tokens spell it.

    Args:
        processor: Class name of the processor, for the message.
        name: Name of the parameter.
        tokenizer: The served model's, or ``None``.
        text: The text.

    Raises:
        InvalidParameter: The served model cannot write it, or its tokenizer is not known.
    """
    vocabulary = served_vocabulary(processor, name, tokenizer)
    named, said = vocabulary.named, text.encode()
    if not named.exact.alphabet.issuperset(said):
        raise InvalidParameter(
            processor,
            name,
            f"expected text that the served model can write, got {shown(text)}",
        )
    plain = _Text(vocabulary.byte_runs, text)
    if not vocabulary.meets_names([said]):
        return plain
    return _EitherText(plain, _Text(named.byte_runs, text))


class _Tokens:
    """Waits for a sequence of tokens."""

    start = 0

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self._automaton = automaton_of(token_ids, (len(token_ids),))
        self._length = len(token_ids)

    def step(self, begun: int, token_id: int) -> int | None:
        """Return with how many tokens of the trigger the output ends."""
        state = self._automaton.step(begun, token_id)
        return None if self._automaton.complete[state] else state

    def lacking(self, begun: int) -> int:
        """Return how many tokens are missing."""
        return self._length - begun


class _Text:
    """Waits for a text, whichever tokens spell it."""

    start = b""

    def __init__(self, runs: ByteRuns, text: str) -> None:
        self._runs = runs
        self._text = text.encode()

    def step(self, begun: bytes, token_id: int) -> bytes | None:
        """Return the last bytes of the output that may begin the trigger, or a character."""
        said = self._runs.joined(begun, token_id)
        return None if self._text in said else said[-max(len(self._text) - 1, MOST_LACKING) :]

    def lacking(self, begun: bytes) -> int:  # noqa: ARG002 - a token may hold all of it
        """Return 1."""
        return 1


class _EitherText:
    """Waits for a text in the output without special tokens, or with their names."""

    def __init__(self, plain: _Text, named: _Text) -> None:
        self._texts = plain, named
        self.start = plain.start, named.start

    def step(self, begun: tuple[bytes, bytes], token_id: int) -> tuple[bytes, bytes] | None:
        """Return the last bytes of both outputs."""
        plain, named = (
            one.step(said, token_id) for one, said in zip(self._texts, begun, strict=True)
        )
        return None if plain is None or named is None else (plain, named)

    def lacking(self, begun: tuple[bytes, bytes]) -> int:  # noqa: ARG002 - as of one text
        """Return 1."""
        return 1
