"""The letters of Unicode scripts, and the tokens that would write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sglang_lp.caches import shared_by_copies
from sglang_lp.edits.ids import Ids, lasting
from sglang_lp.errors import RequestError, Unsupported, refusing, shown
from sglang_lp.text.encoding import served_vocabulary
from sglang_lp.text.utf8 import becoming, lacking, unfinished

if TYPE_CHECKING:
    import numpy as np

    from sglang_lp.text.vocabulary import Vocabulary

#: All letters of scripts have smaller code points: planes 0 to 3.
_LETTERS = 0x40000

#: The scripts of characters without a script: they are used in many, combine with any letter, or
#: are not assigned.
_NO_SCRIPTS = ("Common", "Inherited", "Unknown")

#: The recommended scripts of Unicode (UAX #31, table 5), for a hint after a typo.
_RECOMMENDED = (
    *("Arabic", "Armenian", "Bengali", "Bopomofo", "Cyrillic", "Devanagari", "Ethiopic"),
    *("Georgian", "Greek", "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew"),
    *("Hiragana", "Kannada", "Katakana", "Khmer", "Lao", "Latin", "Malayalam"),
    *("Myanmar", "Oriya", "Sinhala", "Tamil", "Telugu", "Thaana", "Thai", "Tibetan"),
)

#: Added tokens that are markup, such as ``<think>``, and no text in a script.
_MARKUP = re.compile(r"[<\[◁].+[>\]▷]", re.DOTALL)

#: Most beginnings of a character that are kept for one list of scripts.
_MAX_KEPT = 1_024


def banned_scripts(
    processor: str, name: str, tokenizer: Any, scripts: tuple[str, ...], mode: str
) -> BannedScripts:
    """Return the compiled ban of scripts, one for each list of them.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        tokenizer: The served model's, or ``None``.
        scripts: Names of scripts.
        mode: ``"ban"`` for these, or ``"allow"`` for all others.

    Raises:
        InvalidParameter: No such script, nothing is left to write, or the bytes of the tokens are
            unknown.
    """
    vocabulary = served_vocabulary(processor, name, tokenizer)
    with refusing(processor, name):
        return _banned_scripts(vocabulary, tokenizer, scripts, mode)


class BannedScripts:
    """A compiled ban: the tokens that would write a letter of banned scripts.

    Attributes:
        always: The tokens that do so whatever the output is.
    """

    def __init__(
        self, vocabulary: Vocabulary, free: frozenset[int], scripts: Sequence[str], mode: str
    ) -> None:
        """Find the tokens of ``always``.

        Args:
            vocabulary: The served model's.
            free: Ids of tokens that are never banned.
            scripts: Names of scripts.
            mode: ``"ban"`` or ``"allow"``.

        Raises:
            RequestError: No such script, or nothing is left to write.
        """
        import numpy as np

        self._vocabulary = vocabulary
        common, inherited, unknown = map(_letters_of, _NO_SCRIPTS)
        named = np.logical_or.reduce([*map(_checked_letters_of, scripts)])
        #: For each code point whether the character is banned.
        self._banned = named if mode == "ban" else ~(named | common | inherited | unknown)
        #: For each code point whether a begun character may become this character.
        self._ways = ~(self._banned | unknown)
        numbers, holders = vocabulary.characters
        # Larger code points are treated as the last, which is unassigned.
        holding = holders[self._banned[np.minimum(numbers, _LETTERS - 1)]]
        beginning = [ids for tail, ids in vocabulary.tails.items() if self._is_lost(tail)]
        always = {*holding.tolist()}.union(*beginning) - free
        if len(always) == len(vocabulary.exact):
            raise RequestError(
                "expected scripts that leave the model something to write, but every token of it "
                f"holds letters of {'these' if mode == 'ban' else 'others'}"
            )
        self.always = frozenset(always)
        self._sorted = tuple(sorted(always))
        self._ids: Ids | list[int] | None = None
        self._vocab_size = 0
        self._kept: dict[bytes, tuple[int, ...]] = {}

    def holding(self, vocab_size: int) -> Iterable[int]:
        """Return the tokens of ``always`` that have a logit."""
        if self._ids is None or self._vocab_size != vocab_size:  # one for all requests and steps
            self._ids = lasting([token_id for token_id in self._sorted if token_id < vocab_size])
            self._vocab_size = vocab_size
        return self._ids

    def pending(self, pending: bytes, token_ids: Sequence[int]) -> bytes:
        """Return the first bytes of an unfinished character after more tokens.

        Args:
            pending: The bytes before these tokens.
            token_ids: The tokens. Special tokens change nothing.
        """
        text = pending + self._vocabulary.text(token_ids)
        return text[len(text) - unfinished(text) :]

    def completing(self, pending: bytes) -> tuple[int, ...]:
        """Return the tokens that would finish an unfinished character as a banned letter."""
        found = self._kept.get(pending)
        if found is None:
            if len(self._kept) == _MAX_KEPT:
                self._kept.clear()
            heads = self._vocabulary.exact.finishing[lacking(pending)]
            found = self._kept[pending] = tuple(
                sorted(
                    token_id
                    for head, ids in heads.items()
                    if self._is_lost(pending + head)
                    for token_id in ids
                )
            )
        return found

    def _is_lost(self, beginning: bytes) -> bool:
        """Tell whether a character, or everything that its beginning can become, is banned."""
        missing = lacking(beginning)
        if not missing:
            try:
                number = ord(beginning.decode())
            except UnicodeDecodeError:
                return False  # comes out as U+FFFD
            return number < _LETTERS and bool(self._banned[number])
        if unfinished(beginning) < len(beginning):
            return False  # as U+FFFD as well, before another character
        numbers = becoming(beginning)
        first, last = numbers.start, numbers.stop
        return bool(self._banned[first:last].any()) and not self._ways[first:last].any()


@shared_by_copies
def _banned_scripts(
    vocabulary: Vocabulary, tokenizer: Any, scripts: tuple[str, ...], mode: str
) -> BannedScripts:
    return BannedScripts(vocabulary, _markup(tokenizer), scripts, mode)


def _markup(tokenizer: Any) -> frozenset[int]:
    """Return the ids of added tokens that are markup."""
    if hasattr(tokenizer, "get_added_vocab"):
        added: Mapping[str, int] = tokenizer.get_added_vocab()
    else:
        decoder: dict[int, Any] = getattr(tokenizer, "get_added_tokens_decoder", dict)()
        added = {token.content: token_id for token_id, token in decoder.items()}
    return frozenset(
        token_id for name, token_id in added.items() if _MARKUP.fullmatch(name.strip())
    )


def _checked_letters_of(script: str) -> np.ndarray:
    """Return the letters of a script that a request names.

    Raises:
        RequestError: No script has this name, or it has no letters of its own.
    """
    try:
        found = _letters_of(script)
    except ValueError:
        import difflib  # as in params

        near = difflib.get_close_matches(script.title(), _RECOMMENDED, 1)
        hint = f"did you mean {near[0]}?" if near else "such as Han, Latin or Cyrillic"
        raise RequestError(
            f"expected names of Unicode scripts, got {shown(script)}, which is none; {hint}"
        ) from None
    if not found.any() or any((found & _letters_of(name)).any() for name in _NO_SCRIPTS):
        raise RequestError(
            f"expected scripts with letters of their own, got {shown(script)}, which has none"
        )
    return found


@lru_cache(maxsize=64)
def _letters_of(script: str) -> np.ndarray:
    """Return for each code point whether the character is of a script.

    Raises:
        ValueError: No script has this name.
    """
    import numpy as np

    try:
        import regex  # type: ignore[import-untyped]
    except ImportError:
        raise Unsupported(
            "which letters a script has is known to the package regex, which SGLang brings; "
            "install it to try this without a server"
        ) from None
    try:
        pattern = regex.compile(rf"\p{{Script={script}}}+")
    except regex.error:
        raise ValueError(script) from None
    found = np.zeros(_LETTERS, dtype=np.bool_)
    every = np.arange(_LETTERS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for match in pattern.finditer(every):
        found[slice(*match.span())] = True
    return found
