"""Scripts that an answer may not be written in, or the only ones that it may."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from sglang_lp._engine.ids import Ids, lasting
from sglang_lp.builtins.texts import served_vocabulary
from sglang_lp.builtins.thinking.delimiters import Delimiters, resolve
from sglang_lp.builtins.thinking.progress import Progress, markers_for
from sglang_lp.errors import InvalidParameter, RequestError, Unsupported, shown
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.vocabulary import Vocabulary, lacking, unfinished

if TYPE_CHECKING:
    import numpy as np

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served import ServedModel

#: Before here lie the letters of all scripts: planes 0 to 3.
_LETTERS = 0x40000

#: The scripts of a character that belongs to none: it is used in many, goes with any letter, or
#: is not assigned.
_NO_SCRIPTS = ("Common", "Inherited", "Unknown")

#: The recommended scripts of Unicode (UAX #31, table 5), for who mistypes one.
_RECOMMENDED = (
    *("Arabic", "Armenian", "Bengali", "Bopomofo", "Cyrillic", "Devanagari", "Ethiopic"),
    *("Georgian", "Greek", "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew"),
    *("Hiragana", "Kannada", "Katakana", "Khmer", "Lao", "Latin", "Malayalam"),
    *("Myanmar", "Oriya", "Sinhala", "Tamil", "Telugu", "Thaana", "Thai", "Tibetan"),
)

#: Added tokens that are markup, such as ``<think>``, and no text in a script.
_MARKUP = re.compile(r"[<\[◁].+[>\]▷]", re.DOTALL)

#: By the length of a character in bytes, the smallest number that is written with so many.
_SMALLEST = {2: 0x80, 3: 0x800, 4: 0x10000}

#: Most beginnings of a character that are kept for one list of scripts.
_MAX_KEPT = 1_024

_Script = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z _-]*$")]
_Scripts = Annotated[tuple[_Script, ...], Meta(min_length=1, max_length=64)]
_DelimiterText = Annotated[str, Meta(min_length=1, max_length=64)]


class _Progress:
    """Where the output of a request stands."""

    __slots__ = ("banned", "block", "declared", "pending")

    def __init__(self, banned: BannedScripts, block: Progress | None, pending: bytes) -> None:
        self.banned = banned
        #: The thinking, where it matters.
        self.block = block
        #: What there is of an unfinished character.
        self.pending = pending
        self.declared = False


class ScriptLogitProcessor(LogitProcessor):
    """Keep the letters of some scripts out of the output, or of all others.

    With ``mode="ban"`` no letter of ``scripts`` comes out, with ``mode="allow"`` no letter of any
    other. What belongs to no script stays free: digits, punctuation, spaces, emoji, combining
    marks (Common and Inherited in Unicode), and what is not assigned. Han are the characters that
    Chinese, Japanese and Korean share; Japanese needs ``Han``, ``Hiragana`` and ``Katakana``.

    It holds for characters, whichever tokens spell them: banned is each token that holds such a
    letter, completes one that the output has begun, or begins one that could become nothing else.
    Special tokens stay free, and so does added markup, such as ``<think>`` or ``<tool_call>``.

    With ``where`` it holds only inside of thinking blocks (``"thinking"``) or only outside of
    them (``"answer"``).
    """

    __module__ = "sglang_lp.builtins"
    early = True
    reads_prompt = True
    example: ClassVar[Mapping[str, Any]] = {"scripts": ["Han"], "mode": "ban", "where": "answer"}

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            scripts: Up to 64 names of Unicode scripts, such as ``Han``, ``Latin`` or ``Cyrillic``.
            mode: Whether these are banned, or all others.
            where: In which part of the output.
            thinking_start: What opens a thinking block; left out: the only known pair of
                delimiters that the served tokenizer has.
            thinking_end: What closes it, given exactly if ``thinking_start`` is.
        """

        scripts: _Scripts
        mode: Literal["allow", "ban"]
        where: Literal["everywhere", "thinking", "answer"] = "everywhere"
        thinking_start: _DelimiterText | None = None
        thinking_end: _DelimiterText | None = None

        def __post_init__(self) -> None:
            """Refuse a delimiter without the other one, or without a use."""
            if (self.thinking_start is None) != (self.thinking_end is None):
                name = "thinking_start" if self.thinking_start is None else "thinking_end"
                raise ValueError(f"{name}: required, because the other one is given")
            if self.thinking_start is not None and self.where == "everywhere":
                raise ValueError('thinking_start: expected where="thinking" or where="answer"')

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Refuse unknown scripts, and what leaves the served model no way to write or to think."""
        cls._banned(params, served.tokenizer)
        cls._delimiters(params, served.tokenizer)
        return super().fit_params(params, served)

    @classmethod
    def _banned(cls, params: Any, tokenizer: Any) -> BannedScripts:
        vocabulary = served_vocabulary(cls.__name__, "scripts", tokenizer)
        try:
            return _banned_scripts(vocabulary, tokenizer, params.scripts, params.mode)
        except RequestError as error:
            raise InvalidParameter(cls.__name__, "scripts", str(error)) from None

    @classmethod
    def _delimiters(cls, params: Any, tokenizer: Any) -> Delimiters | None:
        if params.where == "everywhere":
            return None
        try:
            found = resolve(tokenizer, params.thinking_start, params.thinking_end)
        except RequestError as error:
            raise InvalidParameter(cls.__name__, "where", str(error)) from None
        always = cls._banned(params, tokenizer).always
        for text, ids in ((found.start, found.start_ids), (found.end, found.end_ids)):
            if not always.isdisjoint(ids):
                raise InvalidParameter(
                    cls.__name__,
                    "scripts",
                    f"expected scripts that leave the thinking delimiters free, but a token of "
                    f"{shown(text)} holds banned letters",
                )
        return found

    def start(self, request: Request) -> _Progress:
        """Look up what is banned, and find out whether the prompt leaves a block open."""
        params, tokenizer = request.params, request.tokenizer
        found, block = self._delimiters(params, tokenizer), None
        if found is not None:
            block = Progress(markers_for(found.start_ids, found.end_ids, ()), None, [])
            block.read(request.prompt_ids)
        banned = self._banned(params, tokenizer)
        return _Progress(banned, block, banned.pending(b"", request.prompt_ids[-3:]))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the thinking, and the character that is not finished."""
        progress = request.state
        progress.pending = progress.banned.pending(progress.pending, token_ids)
        if progress.block is not None:
            progress.block.read(token_ids)

    def fork(self, request: Request) -> _Progress:
        """Return where the output stands, under the same bans."""
        forked: _Progress = copy(request.state)
        forked.block = copy(forked.block)
        return forked

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban what holds, completes or begins a letter that may not come."""
        progress, where = request.state, request.params.where
        banned = progress.banned
        if where == "everywhere":
            if not progress.declared:
                edits.always().ban(banned.holding(edits.vocab_size))
                progress.declared = True
        elif (progress.block.opened >= 0) == (where == "thinking"):
            edits.ban(banned.holding(edits.vocab_size))
        else:
            return
        if progress.pending:
            edits.ban([i for i in banned.completing(progress.pending) if i < edits.vocab_size])


class BannedScripts:
    """Says which tokens would write a letter of banned scripts.

    Attributes:
        always: The ids of the tokens that do so by themselves.
    """

    def __init__(
        self, vocabulary: Vocabulary, free: frozenset[int], scripts: Sequence[str], mode: str
    ) -> None:
        """Find them.

        Args:
            vocabulary: Of the served model.
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
        #: For each number of a character whether it may not come.
        self._banned = named if mode == "ban" else ~(named | common | inherited | unknown)
        #: Whether it is a way on for a character that was begun.
        self._ways = ~(self._banned | unknown)
        numbers, holders = vocabulary.characters
        # Where the last letters end nothing is assigned, nor for ever will be.
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
        """Return the tokens of ``always`` that the model has a logit for: it may have fewer."""
        if self._ids is None or self._vocab_size != vocab_size:  # one for all requests and steps
            self._ids = lasting([token_id for token_id in self._sorted if token_id < vocab_size])
            self._vocab_size = vocab_size
        return self._ids

    def pending(self, pending: bytes, token_ids: Sequence[int]) -> bytes:
        """Return what there is of an unfinished character after more tokens.

        Args:
            pending: What there was before them.
            token_ids: Those without text, special ones, change nothing.
        """
        text = pending + self._vocabulary.text(token_ids)
        return text[len(text) - unfinished(text) :]

    def completing(self, pending: bytes) -> tuple[int, ...]:
        """Return the tokens that would make a banned letter of an unfinished character."""
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
        """Tell whether a character, or all that a beginning of one can become, is banned."""
        missing = lacking(beginning)
        if not missing:
            try:
                number = ord(beginning.decode())
            except UnicodeDecodeError:
                return False  # comes out as U+FFFD
            return number < _LETTERS and bool(self._banned[number])
        if unfinished(beginning) < len(beginning):
            return False  # as here, before another one begins
        length = len(beginning) + missing
        number = beginning[0] & (0xFF >> (length + 1))
        for byte in beginning[1:]:
            number = number << 6 | byte & 0x3F
        first, last = number << 6 * missing, (number + 1) << 6 * missing
        first = max(first, _SMALLEST[length])
        return bool(self._banned[first:last].any()) and not self._ways[first:last].any()


@lru_cache(maxsize=16)
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
        RequestError: There is none of this name, or it has no letters of its own.
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
    """Return for each number of a character whether it is of a script.

    Raises:
        ValueError: There is none of this name.
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
