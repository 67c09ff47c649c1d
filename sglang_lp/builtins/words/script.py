"""Scripts that an answer may not be written in, or the only ones that it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams, find_delimiters
from sglang_lp.errors import InvalidParameter, shown
from sglang_lp.processor import LogitProcessor
from sglang_lp.text.scripts import BannedScripts, banned_scripts

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.params import Parameters
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

_Script = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z _-]*$")]
_Scripts = Annotated[tuple[_Script, ...], Meta(min_length=1, max_length=64)]
_DelimiterText = Annotated[str, Meta(min_length=1, max_length=64)]


class _CharacterProgress:
    """The unfinished character that the output ends in."""

    __slots__ = ("banned", "declared", "pending")

    def __init__(self, banned: BannedScripts, pending: bytes) -> None:
        self.banned = banned
        #: The first bytes of an unfinished character.
        self.pending = pending
        self.declared = False


class ScriptLogitProcessor(LogitProcessor):
    """Keep the letters of some scripts out of the output, or of all others.

    With ``mode="ban"`` no letter of ``scripts`` comes out, with ``mode="allow"`` no letter of any
    other script. Han are the characters that Chinese, Japanese and Korean share; Japanese needs
    ``Han``, ``Hiragana`` and ``Katakana``.

    A character counts whichever tokens spell it. A token is banned if it contains a banned letter,
    completes one that the output has begun, or begins one that can become nothing else.

    Never banned are:

    - characters of no script: digits, punctuation, spaces, emoji, combining marks (Common and
      Inherited in Unicode), and unassigned characters;
    - special tokens, and added markup, such as ``<think>`` or ``<tool_call>``.

    With ``where`` the ban holds in one phase of the answer, and scripts with letters of a thinking
    delimiter are refused.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {"scripts": ["Han"], "mode": "ban", "where": "answer"}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            scripts: Up to 64 names of Unicode scripts, such as ``Han``, ``Latin`` or ``Cyrillic``.
            mode: ``"ban"`` bans these scripts, ``"allow"`` all others.
            thinking_start: Opens a thinking block. Left out: the start and the end of the served
                reasoning parser, or the only known pair that the served tokenizer has.
            thinking_end: Closes a thinking block; given exactly if ``thinking_start`` is.
        """

        scripts: _Scripts
        mode: Literal["allow", "ban"]
        thinking_start: _DelimiterText | None = None
        thinking_end: _DelimiterText | None = None

        def __post_init__(self) -> None:
            """Refuse a single delimiter, and delimiters without a use."""
            if (self.thinking_start is None) != (self.thinking_end is None):
                name = "thinking_start" if self.thinking_start is None else "thinking_end"
                raise ValueError(f"{name}: required, because the other delimiter is given")
            if self.thinking_start is not None and self.where == "everywhere":
                raise ValueError('thinking_start: expected where="thinking" or where="answer"')

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Parameters:
        """Refuse unknown scripts, and bans that leave the served model no way to write or think."""
        always = cls._banned(params, served.tokenizer).always
        if params.where != "everywhere":
            found = find_delimiters(cls.__name__, params, served)
            for text, ids in ((found.start, found.start_ids), (found.end, found.end_ids)):
                if not always.isdisjoint(ids):
                    raise InvalidParameter(
                        cls.__name__,
                        "scripts",
                        f"expected scripts that leave the thinking delimiters free, but a token of "
                        f"{shown(text)} holds banned letters",
                    )
        return super().fit_params(params, served)

    @classmethod
    def _banned(cls, params: Any, tokenizer: Any) -> BannedScripts:
        return banned_scripts(cls.__name__, "scripts", tokenizer, params.scripts, params.mode)

    def start(self, request: Request) -> _CharacterProgress:
        """Compile the ban."""
        banned = self._banned(request.params, request.tokenizer)
        return _CharacterProgress(banned, banned.pending(b"", request.prompt_ids[-3:]))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the unfinished character."""
        progress = request.state
        progress.pending = progress.banned.pending(progress.pending, token_ids)

    def fork(self, request: Request) -> _CharacterProgress:
        """Copy the state; the ban is shared."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the tokens that contain, complete or begin a banned letter."""
        progress = request.state
        banned = progress.banned
        if not progress.declared:
            edits.always().ban(banned.holding(edits.vocab_size))
            progress.declared = True
        if progress.pending:
            edits.ban([i for i in banned.completing(progress.pending) if i < edits.vocab_size])
