"""The progress of a request through its thinking: the state machine of budgets and reports."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from sglang_lp.builtins.thinking.finder import EndCause

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.finder import Finder

#: Tokens at the end of a prompt that are read as text.
_READ = 64


class ThinkingState(Enum):
    """The states of :class:`Progress`.

    Attributes:
        is_open: Whether a block is open.
    """

    OUTSIDE = "outside", False
    OPENING = "opening", True
    INSIDE = "inside", True
    TOOL_CALL = "tool call", False
    INSIDE_CALL = "inside a tool call", True

    def __init__(self, label: str, is_open: bool) -> None:  # noqa: FBT001 - a row of the table
        self.label = label
        self.is_open = is_open


_OUTSIDE, _OPENING, _INSIDE = ThinkingState.OUTSIDE, ThinkingState.OPENING, ThinkingState.INSIDE
_TOOL_CALL, _INSIDE_CALL = ThinkingState.TOOL_CALL, ThinkingState.INSIDE_CALL


class EndedBlock(NamedTuple):
    """The block that ended last.

    Attributes:
        cause: The cause of its end.
        opened: Index of its first token, prompt included.
        tokens: Number of its tokens, without the delimiter that ended it.
    """

    cause: EndCause
    opened: int
    tokens: int


class Progress:
    """The thinking of one request, followed token by token.

    A block begins after its first start; a start inside an open block is part of the block. In a
    prompt the latest delimiter decides. A tool call interrupts a block: the next block continues
    its count unless an end comes before.

    =============== ============================ ===============================================
    state           delimiter                    next state
    =============== ============================ ===============================================
    ``OUTSIDE``     start                        ``INSIDE``
    ``OPENING``     start, as the first text     ``INSIDE``, counted from after this start
    ``OPENING``     none: the text so far        ``INSIDE``, counted from the first token
                    begins no delimiter
    ``OPENING``     end                          ``OUTSIDE``
    ``OPENING``     tool start                   ``TOOL_CALL``
    ``INSIDE``      end                          ``OUTSIDE``
    ``INSIDE``      tool start                   ``TOOL_CALL``
    ``TOOL_CALL``   start                        ``INSIDE_CALL``
    ``TOOL_CALL``   tool end                     ``INSIDE``
    ``TOOL_CALL``   end, in a format without a   ``TOOL_CALL``; the next block counts from 0
                    tool end
    ``INSIDE_CALL`` end                          ``TOOL_CALL``; the next block counts from 0
    ``INSIDE_CALL`` tool start                   ``TOOL_CALL``
    ``INSIDE_CALL`` tool end                     ``INSIDE``, the same block
    =============== ============================ ===============================================

    Any other delimiter leaves the state as it is. A request begins as its prompt ends: ``INSIDE``
    if the prompt leaves a block open, else ``OUTSIDE``. Where the reasoning parser begins inside,
    ``OPENING`` takes the place of ``OUTSIDE``: the answer may or may not repeat the start.

    The caller reads each token once, in order, one or more a call. For a draft it reads on a
    :func:`copy.copy`. It resets nothing: a history that is not an extension needs a new object.

    Attributes:
        state: The state.
        finder: The delimiters.
        length: Number of tokens read, prompt included.
        opened: Index of the first token of the open block, prompt included; in states without an
            open block -1.
        carried: Tokens that this block, or the next block, had before a tool call interrupted it.
        begun: State of ``finder.closer`` after the tokens generated in the open block.
        newest: The newest token of the open block, -1 if it has none.
        waits: How many tokens generated in the open block are the counted token.
        unseen: Position and token of the last force on a server that had not shown the token
            before; set by :mod:`sglang_lp.builtins.thinking.stock` only.
        last: The block that ended last, a new object for each; ``None`` before.
        spent: Number of generated tokens in all blocks that ended.
        looped: Whether a loop was found in the open block; set by the budget.
        owed: Number of tokens that the answer lacks after the last block, or without a block.
            Delimiters, headers and blank tokens are no part of an answer.
    """

    __slots__ = (
        "_answering",
        "_blank",
        "_counted",
        "_held",
        "_lead",
        "_least",
        "_matched",
        "_prompt_length",
        "_searched",
        "_sizes",
        "_tail",
        "begun",
        "carried",
        "finder",
        "last",
        "length",
        "looped",
        "newest",
        "opened",
        "owed",
        "spent",
        "state",
        "unseen",
        "waits",
    )

    def __init__(
        self,
        finder: Finder,
        counted: int | None,
        prompt_ids: Sequence[int],
        *,
        inside: bool = False,
    ) -> None:
        """Read a prompt.

        Args:
            finder: The delimiters.
            counted: A token to count in the open block.
            prompt_ids: The prompt.
            inside: Whether a block is open after the prompt, whatever the prompt says.
        """
        self.finder = finder
        self.owed = self._least = 0
        self._blank: frozenset[int] = frozenset()
        #: Whether the answer after the last block is open, as far as the format says.
        self._answering = True
        #: For each of the latest tokens that may turn out to be a delimiter, whether it is said.
        self._held: tuple[bool, ...] = ()
        self.unseen: tuple[int, int] | None = None
        self.last: EndedBlock | None = None
        self.begun = self.waits = self.spent = self.carried = self._prompt_length = 0
        self.looped = False
        self.newest = -1
        self._counted: int | None = None
        #: In ``OPENING`` the number of symbols read, all of which begin a delimiter.
        self._lead = 0
        #: State of ``finder.texts``.
        self._matched = 0
        #: Symbols of each of the latest tokens, while a delimiter is begun.
        self._sizes: tuple[int, ...] = ()
        #: The latest tokens, one less than the end has.
        self._tail: Sequence[int] = []
        self._searched = finder.latest_of_prompt(prompt_ids)  # kept, so that copies find it
        after, opens = self._searched.latest or (0, False)
        self.state, self.opened = (_INSIDE, after) if opens else (_OUTSIDE, -1)
        self.length = max(after, len(prompt_ids) - _READ)
        self.read(prompt_ids[self.length :])
        self._tail = [*prompt_ids[1 - len(finder.end) :]] if len(finder.end) > 1 else []
        self._forget_block()
        self._counted = counted
        self.last, self.spent, self.carried, self._prompt_length = None, 0, 0, self.length
        self.state = _INSIDE if self.state.is_open else _OUTSIDE
        if inside:
            self._matched = finder.fresh  # SGLang's parser sees the answer only
            if self.state is _OUTSIDE:
                self.state, self.opened = _OPENING, self.length

    def __repr__(self) -> str:
        parts = [f"{self.state.label} after {self.length} tokens"]
        if self.state.is_open:
            parts.append(f"block from {self.opened} has {self.inside}")
        if self.carried:
            parts.append(f"{self.carried} carried over a tool call")
        if self.finder.depth[self._matched]:
            parts.append(f"{self.finder.depth[self._matched]} symbols of a delimiter read")
        if self.begun:
            parts.append(f"closing goes on with {self.finder.next_token[self.begun]}")
        if self.looped:
            parts.append("looped")
        if self.last is not None:
            parts.append(f"{self.spent} spent before, last block ended by {self.last.cause}")
        return f"<Progress {', '.join(parts)}>"

    def owe(self, least: int, blank: frozenset[int]) -> None:
        """Count down the tokens that an answer has at least, from the end of each block.

        Args:
            least: Number of these tokens.
            blank: The tokens that do not count.
        """
        self.owed = self._least = least
        self._blank = blank

    def await_header(self) -> None:
        """Take no text for the answer before a text that opens it."""
        self._answering = False

    def _forget_block(self) -> None:
        """Begin a block with no generated tokens."""
        self.begun = self.waits = 0
        self.newest = -1
        self.looped = False

    @property
    def inside(self) -> int:
        """Number of tokens of the open block; outside, the count from which the next begins."""
        return self.carried + (self.length - self.opened if self.state.is_open else 0)

    @property
    def position(self) -> int:
        """Number of tokens read after the prompt."""
        return self.length - self._prompt_length

    @property
    def is_settled(self) -> bool:
        """Whether no delimiter and no closing is begun."""
        return not (self._matched or self.begun)

    @property
    def generated(self) -> int:
        """Number of generated tokens of the open block, since the last tool call."""
        return self.length - max(self.opened, self._prompt_length)

    @property
    def of_end(self) -> int:
        """Number of tokens of the end, but not all, that the history ends with."""
        end, tail = self.finder.end, tuple(self._tail)
        lengths = range(len(end) - 1, 0, -1)
        return next((length for length in lengths if tail[-length:] == end[:length]), 0)

    @property
    def completing_call(self) -> Sequence[int]:
        """The tokens that complete a tool start, if one is begun."""
        return self.finder.completing(self._matched)

    def read(self, token_ids: Sequence[int]) -> None:
        """Read the next tokens."""
        finder = self.finder
        if self._matched or self.begun or not finder.telling.isdisjoint(token_ids):  # rare
            self._follow(token_ids)
        else:
            if self.state is _OPENING:
                self.state = _INSIDE
            elif self.owed and self.answers:
                blank = self._blank
                said = sum(token_id not in blank for token_id in token_ids)
                self.owed = max(0, self.owed - said)
            self.length += len(token_ids)
            if token_ids:
                self.newest = token_ids[-1]
            if self._counted is not None:
                self.waits += token_ids.count(self._counted)
        if reach := len(finder.end) - 1:
            self._tail = [*self._tail, *token_ids[-reach:]][-reach:]

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Read tokens of which one may be part of a delimiter or of a closing."""
        telling, closer = self.finder.telling, self.finder.closer
        for token_id in token_ids:
            at = self.length
            self.length = at + 1
            answers = bool(self.owed) and self.answers
            if self._matched or token_id in telling:
                if self._scan(token_id, at):
                    self._held, answers = (), False
            elif self.state is _OPENING:
                self.state = _INSIDE
            if 0 <= self.opened <= at:
                self.newest = token_id
                self.waits += token_id == self._counted
                self.begun = closer.step(self.begun, token_id)
            if answers and self.answers:
                self._answer(token_id)

    @property
    def answers(self) -> bool:
        """Whether the next token is part of the answer, unless it is of a delimiter."""
        return self._answering and not self.state.is_open

    def _answer(self, token_id: int) -> None:
        """Count a token of an answer that is too short, once it cannot be part of a delimiter."""
        held = (*self._held, token_id not in self._blank)
        begun = self._touching(self.finder.depth[self._matched])
        counted = len(held) - min(begun, len(held))
        self.owed = max(0, self.owed - sum(held[:counted]))
        self._held = held[counted:]

    def _scan(self, token_id: int, at: int) -> bool:
        """Read the symbols of the token with index ``at``; return if it completes a delimiter."""
        finder, matched = self.finder, self._matched
        symbols = finder.symbols(token_id)
        self._sizes = (*self._sizes, len(symbols))[-finder.longest :]
        begun = None  # the number of this token's symbols after which a block opened
        completes = False
        for place, symbol in enumerate(symbols, 1):
            matched = after = finder.texts.step(matched, symbol)
            if self.state is _OPENING:
                if finder.depth[matched] > self._lead:
                    self._lead += 1
                else:
                    self.state = _INSIDE
            resumes = matched in finder.resumes and self._end_call()
            if self.state.is_open and matched in finder.closes:
                cause, length = finder.closes[matched]
                # A token that is a start and an end, and nothing between, is not in the block.
                whole = place - length == begun
                self._end(cause, 1 if whole else self._spelling(length + len(symbols) - place))
                matched = 0
            elif (matched in finder.opens and self.state not in _CONTINUING) or resumes:
                begun = place
                self._open(at + (place == len(symbols)))
                matched = finder.fresh
            elif matched in finder.closes:
                completes = True
                if matched in finder.ends and not finder.resumes:
                    self.carried = 0  # the block that a tool call interrupted does not continue
            if after in finder.answers and not self.state.is_open:
                completes = self._answering = True
                self.owed = self._least
        self._matched = matched
        if not matched:
            self._sizes = ()
        return completes

    def _spelling(self, symbols: int) -> int:
        """Return how many of the latest tokens spell these symbols and nothing else."""
        count = 0
        for size in reversed(self._sizes):
            symbols -= size
            if symbols < 0:
                break
            count += 1
        return count

    def _touching(self, symbols: int) -> int:
        """Return how many of the latest tokens hold a part of these symbols."""
        count = 0
        for size in reversed(self._sizes):
            if symbols <= 0:
                break
            symbols -= size
            count += 1
        return count

    def _open(self, index: int) -> None:
        """Open a block whose first token has this index."""
        self.state = _INSIDE_CALL if self.state is _TOOL_CALL else _INSIDE
        self.opened = index
        self._forget_block()

    def _end(self, cause: EndCause, spelling: int) -> None:
        """End the open block, whose last ``spelling`` tokens spell the delimiter."""
        tokens = max(0, self.length - self.opened - spelling)
        self.last = EndedBlock(cause, self.opened, tokens)
        self.spent += max(0, self.generated - spelling)
        self.owed, self._held, self._answering = self._least, (), not self.finder.answers
        by_call = cause is EndCause.TOOL_CALL
        self.carried = self.carried + tokens if by_call else 0
        self.state = _TOOL_CALL if by_call or self.state is _INSIDE_CALL else _OUTSIDE
        self.opened = -1
        self._forget_block()

    def _end_call(self) -> bool:
        """End the tool call, if there is one; tell whether its block is to be opened again."""
        if self.state is _TOOL_CALL:
            self.state = _OUTSIDE
            return True
        if self.state is _INSIDE_CALL:
            self.state = _INSIDE
        return False


#: In these states a start is part of the open block.
_CONTINUING = _INSIDE, _INSIDE_CALL
