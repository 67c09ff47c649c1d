"""Scripts that an answer may not be written in, or the only ones that it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from sglang_lp.builtins.thinking.delimiters import Delimiters, resolve
from sglang_lp.builtins.thinking.finder import BlockTokens, Finder
from sglang_lp.builtins.thinking.known import TOOL_STARTS
from sglang_lp.builtins.thinking.progress import Progress
from sglang_lp.builtins.thinking.served import delimiter_texts, served_finder
from sglang_lp.errors import InvalidParameter, refusing, shown
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ServedModel
from sglang_lp.text.scripts import BannedScripts, banned_scripts

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

_Script = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z _-]*$")]
_Scripts = Annotated[tuple[_Script, ...], Meta(min_length=1, max_length=64)]
_DelimiterText = Annotated[str, Meta(min_length=1, max_length=64)]


class _Progress:
    """The thinking block, and the unfinished character, that the output ends in."""

    __slots__ = ("banned", "block", "declared", "pending")

    def __init__(self, banned: BannedScripts, block: Progress | None, pending: bytes) -> None:
        self.banned = banned
        #: The thinking, if ``where`` depends on it.
        self.block = block
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

    With ``where`` the ban applies only inside of thinking blocks (``"thinking"``) or only outside
    of them (``"answer"``). With ``--reasoning-parser`` the thinking is the text that this parser
    returns as reasoning, so a tool call in a block is outside.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    reads_prompt = True
    example: ClassVar[Mapping[str, Any]] = {"scripts": ["Han"], "mode": "ban", "where": "answer"}

    class Params(Parameters, frozen=True):
        """The parameters of a request.

        Attributes:
            scripts: Up to 64 names of Unicode scripts, such as ``Han``, ``Latin`` or ``Cyrillic``.
            mode: ``"ban"`` bans these scripts, ``"allow"`` all others.
            where: The part of the output to which the ban applies.
            thinking_start: Opens a thinking block. Left out: the start and the end of the served
                reasoning parser, or the only known pair that the served tokenizer has.
            thinking_end: Closes a thinking block; given exactly if ``thinking_start`` is.
        """

        scripts: _Scripts
        mode: Literal["allow", "ban"]
        where: Literal["everywhere", "thinking", "answer"] = "everywhere"
        thinking_start: _DelimiterText | None = None
        thinking_end: _DelimiterText | None = None

        def __post_init__(self) -> None:
            """Refuse a single delimiter, and delimiters without a use."""
            if (self.thinking_start is None) != (self.thinking_end is None):
                name = "thinking_start" if self.thinking_start is None else "thinking_end"
                raise ValueError(f"{name}: required, because the other one is given")
            if self.thinking_start is not None and self.where == "everywhere":
                raise ValueError('thinking_start: expected where="thinking" or where="answer"')

    class _Fitted(Params, frozen=True):
        """The parameters with what finds the thinking of the served model."""

        finder: Finder | None = None
        force_reasoning: bool = False

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Refuse unknown scripts, and bans that leave the served model no way to write or think."""
        cls._banned(params, served.tokenizer)
        fitted = super().fit_params(params, served)
        given = {name: getattr(fitted, name) for name in cls.Params.__struct_fields__}
        return cls._Fitted(**given, finder=cls._finder(params, served))

    @classmethod
    def begin_inside(cls, params: Any) -> Any:
        """As for :class:`~sglang_lp.builtins.ThinkingBudgetLogitProcessor`."""
        inside = params.finder is not None and params.finder.reads_text
        return msgspec.structs.replace(params, force_reasoning=True) if inside else params

    @classmethod
    def _banned(cls, params: Any, tokenizer: Any) -> BannedScripts:
        return banned_scripts(cls.__name__, "scripts", tokenizer, params.scripts, params.mode)

    @classmethod
    def _finder(cls, params: Any, served: ServedModel) -> Finder | None:
        """Return the finder that a thinking budget has; ``None`` without ``where``."""
        if params.where == "everywhere":
            return None
        found = cls._delimiters(params, served)
        return served_finder(BlockTokens(found.start_ids, found.end_ids), served, TOOL_STARTS)

    @classmethod
    def _delimiters(cls, params: Any, served: ServedModel) -> Delimiters:
        tokenizer = served.tokenizer
        with refusing(cls.__name__, "where"):
            found = resolve(tokenizer, *delimiter_texts(params, served))
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
        """Compile the ban, and find out whether the prompt leaves a block open."""
        params, tokenizer = request.params, request.tokenizer
        if not isinstance(params, self._Fitted):
            params = self._Fitted(
                **msgspec.structs.asdict(params),
                finder=self._finder(params, ServedModel(tokenizer)),
            )
        block = None
        if params.finder is not None:
            inside = params.force_reasoning
            block = Progress(params.finder, None, request.prompt_ids, inside=inside)
        banned = self._banned(params, tokenizer)
        return _Progress(banned, block, banned.pending(b"", request.prompt_ids[-3:]))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the thinking and the unfinished character."""
        progress = request.state
        progress.pending = progress.banned.pending(progress.pending, token_ids)
        if progress.block is not None:
            progress.block.read(token_ids)

    def fork(self, request: Request) -> _Progress:
        """Copy the state; the ban is shared."""
        forked: _Progress = copy(request.state)
        forked.block = copy(forked.block)
        return forked

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the tokens that contain, complete or begin a banned letter."""
        progress, where = request.state, request.params.where
        banned = progress.banned
        if where == "everywhere":
            if not progress.declared:
                edits.always().ban(banned.holding(edits.vocab_size))
                progress.declared = True
        elif progress.block.state.is_open == (where == "thinking"):
            edits.ban(banned.holding(edits.vocab_size))
        else:
            return
        if progress.pending:
            edits.ban([i for i in banned.completing(progress.pending) if i < edits.vocab_size])
