"""Where thinking blocks open and close: the one finder, for budgets, reports and traces.

Delimiters are texts, and count whichever tokens spell them, as in SGLang's reasoning parsers. What
a token spells is told by the vocabulary; a token of which that is not known stands for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of
from sglang_lp.copies import shared_by_copies
from sglang_lp.processor import lasting
from sglang_lp.text.automaton import Automaton

if TYPE_CHECKING:
    from sglang_lp.builtins.prompt.prompts import Numbers
    from sglang_lp.builtins.thinking.known import ReasoningFormat
    from sglang_lp.text.vocabulary import Vocabulary

__all__ = ["Block", "Closing", "Ended", "Finder", "Progress", "find_blocks", "finder_for"]

#: Tokens at the end of a prompt, among which its latest delimiter is most of the time.
_PIECE = 4_096
#: Tokens at the end of a prompt that are read as text.
_READ = 64
#: A token whose text is not known is a symbol of its own, after those of all bytes.
_TOKENS = 256
_NEW_LINE = 10


class Ended(StrEnum):
    """What ended a block."""

    END = "end"
    TOOL_CALL = "tool_call"


class Closing(NamedTuple):
    """The tokens that close a block.

    Attributes:
        start: Opens a block.
        end: Closes it.
        before_end: Forced before ``end``.
        eos: End the answer.
        tool_starts: Each opens a tool call, and so ends a block.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    before_end: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    tool_starts: tuple[int, ...] = ()


class Finder:
    """The delimiters of a request, the same for all its copies.

    Attributes:
        start: The tokens that open a block.
        end: Those that close it.
        closing: Forced to close it: what comes before the end, then the end.
        closer: Follows the longest prefix of ``closing`` or ``end`` that is a suffix of the block.
        next_token: For each state of ``closer``, the token that continues it.
        others: The tokens that end the answer and are not in the end.
        closing_signs: For each number of tokens of the end that are written, the next one of it
            and ``others``.
        texts: Follows the delimiters, symbol by symbol.
        depth: For each state of ``texts``, how many symbols of a delimiter are written.
        longest: Symbols of the longest delimiter.
        opens: The states in which a block opens.
        closes: For each state in which one closes, what ended it and in how many symbols.
        ends: Those in which an end is complete.
        resumes: The states in which a block goes on after a tool call.
        fresh: The state after a delimiter.
        tool_begun: The states in which a tool start is begun.
        reads_text: Whether delimiters count whichever tokens spell them.
        strict: Whether SGLang masks what is no end once a budget of its own is spent.
        telling: Tokens without any of these change nothing, unless a delimiter or a closing is
            begun.
    """

    def __init__(
        self, closing: Closing, form: ReasoningFormat | None, vocabulary: Vocabulary | None
    ) -> None:
        self.start, self.end = closing.start, closing.end
        self.closing = closing.before_end + closing.end
        self.closer = Automaton([self.closing, self.end])
        # ``closing`` was added first, so it comes first where both continue.
        self.next_token = [next(iter(after), self.closing[0]) for after in self.closer.children]
        others = [token_id for token_id in dict.fromkeys(closing.eos) if token_id not in self.end]
        self.others = lasting(others)
        self.closing_signs = [lasting([token_id, *others]) for token_id in self.end]
        self.reads_text = form is not None and vocabulary is not None
        self.strict = form is not None and form.strict
        self._tokens = () if vocabulary is None else vocabulary.tokens
        self._read_texts(closing, form)
        first = self.texts.children[0]
        telling = {symbol - _TOKENS for symbol in first if symbol >= _TOKENS}
        if vocabulary is not None:
            begun = [bytes([symbol]) for symbol in first if symbol < _TOKENS]
            telling.update(vocabulary.exact.containing(begun).tolist() if begun else ())
        self.telling = frozenset(telling.union(self.closer.children[0]))

    def _read_texts(self, closing: Closing, form: ReasoningFormat | None) -> None:
        """Follow the delimiters as their tokens, and as whatever else spells them."""
        starts, ends = [self._spelled(self.start)], [self._spelled(self.end)]
        tools = [self._spelled((token_id,)) for token_id in closing.tool_starts]
        resumes: list[tuple[int, ...]] = []
        line = 0
        if form is not None and self._tokens:
            line = int(form.tool_start_at_line_start)
            starts.append((*form.start.encode(),))
            ends += [(*text.encode(),) for text in (form.end, *form.other_ends)]
            tools = [(*([_NEW_LINE] * line), *text.encode()) for text in form.tool_starts]
            resumes += [(*form.tool_end.encode(),)] if form.tool_end else []
        self.texts = texts = Automaton([*starts, *ends, *tools, *resumes])
        self.fresh = texts.step(0, _NEW_LINE) if line else 0
        self.depth = [0] * len(texts.complete)
        for state, following in enumerate(texts.children):
            for after in following.values():
                self.depth[after] = self.depth[state] + 1
        self.longest = max(self.depth)
        self.opens = {*self._lengths(starts)}
        self.resumes = {*self._lengths(resumes)}
        self.closes = {
            state: (Ended.TOOL_CALL, length - line)
            for state, length in self._lengths(tools).items()
        }
        self.closes |= {state: (Ended.END, length) for state, length in self._lengths(ends).items()}
        self.ends = {state for state, (kind, _) in self.closes.items() if kind is Ended.END}
        self.tool_begun = {
            self._state(symbols[:length])
            for symbols in tools
            for length in range(1 + line, len(symbols))
        }

    def _spelled(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(symbol for token_id in token_ids for symbol in self.symbols(token_id))

    def _state(self, symbols: Sequence[int]) -> int:
        state = 0
        for symbol in symbols:
            state = self.texts.children[state][symbol]
        return state

    def _lengths(self, texts: Sequence[Sequence[int]]) -> dict[int, int]:
        """Return the states in which one of these texts is complete, and in how many symbols."""
        found = {self._state(symbols): len(symbols) for symbols in texts}
        for state in self.texts.by_length():
            if state not in found and self.texts.shorter[state] in found:
                found[state] = found[self.texts.shorter[state]]
        return found

    def symbols(self, token_id: int) -> Sequence[int]:
        """Return what a token adds to the text."""
        piece = self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""
        return piece or (_TOKENS + token_id,)

    def latest_of_prompt(self, prompt_ids: Sequence[int]) -> _Searched:
        """Find the latest delimiter of a prompt by its tokens, once for all of its copies."""
        tokens = numbers_of(prompt_ids)
        # Most of the time it is near the end, and found sooner than the copies are compared.
        before = max(0, len(tokens) - _PIECE)
        begin = max(0, before - max(len(self.start), len(self.end)) + 1)
        latest = self._latest(tokens[begin:])
        if latest is not None and begin + latest[0] > before:
            return _Searched(b"", (begin + latest[0], latest[1]))
        if not before:
            return _Searched(b"", None)
        key = self.start, self.end
        return _searched.of(tokens, key, lambda prompt: _Searched(prompt, self._latest(tokens)))

    def _latest(self, tokens: Numbers) -> tuple[int, bool] | None:
        """Return the index after the latest delimiter, and whether it opens a block."""
        start, end = _after_last(tokens, self.start), _after_last(tokens, self.end)
        latest = max(start, end)
        return (latest, latest == start) if latest else None


class _Searched:
    """The latest delimiter of a prompt: the index after it, and whether it opens a block."""

    __slots__ = ("__weakref__", "latest", "prompt")

    def __init__(self, prompt: bytes, latest: tuple[int, bool] | None) -> None:
        self.prompt = prompt
        self.latest = latest


_searched: ReadPrompts[_Searched] = ReadPrompts()


@shared_by_copies
def finder_for(
    closing: Closing, form: ReasoningFormat | None = None, vocabulary: Vocabulary | None = None
) -> Finder:
    """Return a :class:`Finder`, shared by all requests with the same delimiters.

    Args:
        closing: The tokens.
        form: The texts; ``None`` for none but those of the tokens.
        vocabulary: What tokens spell; ``None`` to go by the tokens alone.
    """
    return Finder(closing, form, vocabulary)


class Progress:
    """What the tokens of one request have shown so far.

    A block is counted from the first start that is not closed: a start in an open block is a part
    of it. In a prompt the latest delimiter tells. A block that a tool call interrupts goes on with
    the next start, if no end comes before.

    Attributes:
        finder: Its delimiters.
        length: How many tokens were read, prompt included.
        opened: Index of the first token inside the open block, prompt included; -1 if none is.
        carried: Tokens that this block, or the next one, had before a tool call interrupted it.
        begun: State of ``finder.closer`` after the tokens generated in the open block.
        newest: The newest of them, or -1 before there is one.
        waits: How many of them are the token that is counted.
        forced: The last token that was forced without seeing the one before, or -1.
        forced_at: Its position, or -1.
        ended: What ended the last block that ended, the index of its first token, and how many
            it had.
        blocks: How many blocks have ended.
        spent: Generated tokens of these.
        looped: Whether the open block has come to a loop.
    """

    __slots__ = (
        "_begun",
        "_calls",
        "_counted",
        "_lead",
        "_searched",
        "_sizes",
        "_state",
        "_tail",
        "begun",
        "blocks",
        "carried",
        "ended",
        "finder",
        "forced",
        "forced_at",
        "length",
        "looped",
        "newest",
        "opened",
        "spent",
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
            prompt_ids: The prompt, which counts for where a block opened.
            inside: Whether a block is open after it, whatever it says.
        """
        self.finder = finder
        self.forced = self.forced_at = -1
        self.ended: tuple[Ended, int, int] | None = None
        self.blocks = self.begun = self.waits = self.spent = self._begun = self.carried = 0
        self.looped = False
        #: Whether a tool call has begun in a block, until what ends such calls.
        self._calls = False
        self.newest = -1
        self._counted: int | None = None
        #: Symbols since a block opened without a start, while they may be the start; else -1.
        self._lead = -1
        self._state = 0
        #: Symbols of each of the latest tokens, while a delimiter is begun.
        self._sizes: tuple[int, ...] = ()
        self._tail: Sequence[int] = []
        self._searched = finder.latest_of_prompt(prompt_ids)  # kept, so that copies find it
        after, opens = self._searched.latest or (0, False)
        self.opened = after if opens else -1
        self.length = max(after, len(prompt_ids) - _READ)
        self.read(prompt_ids[self.length :])
        self._tail = [*prompt_ids[1 - len(finder.end) :]] if len(finder.end) > 1 else []
        self._reset()
        self._counted = counted
        self.ended, self.blocks, self.spent, self._begun = None, 0, 0, self.length
        self.carried, self._calls = 0, False
        if inside:
            self._state = finder.fresh  # SGLang's parser sees the answer alone
        if inside and self.opened < 0:
            self.opened, self._lead = self.length, 0

    def _reset(self) -> None:
        """Begin a block with no generated tokens."""
        self.begun = self.waits = 0
        self.newest = -1
        self.looped = False

    @property
    def inside(self) -> int:
        """How many tokens the open block has; outside, how many the next start would find."""
        return self.carried + (self.length - self.opened if self.opened >= 0 else 0)

    @property
    def generated(self) -> int:
        """How many generated tokens the open block has, since a tool call if one interrupted it."""
        return self.length - max(self.opened, self._begun)

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in tokens."""
        finder = self.finder
        if self._state or self.begun or not finder.telling.isdisjoint(token_ids):  # rare
            self._follow(token_ids)
        else:
            self._lead = -1
            self.length += len(token_ids)
            if token_ids:
                self.newest = token_ids[-1]
            if self._counted is not None:
                self.waits += token_ids.count(self._counted)
        if reach := len(finder.end) - 1:
            self._tail = [*self._tail, *token_ids[-reach:]][-reach:]

    @property
    def of_end(self) -> int:
        """How many tokens of the end, but not all, the history ends with, prompt included."""
        end, tail = self.finder.end, tuple(self._tail)
        lengths = range(len(end) - 1, 0, -1)
        return next((length for length in lengths if tail[-length:] == end[:length]), 0)

    def may_call(self, over: int) -> bool:
        """Tell whether a tool start was begun before the block had ``over`` tokens too many."""
        return self._state in self.finder.tool_begun and over < self.finder.depth[self._state]

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Note delimiters, and the beginning of a closing."""
        telling, closer = self.finder.telling, self.finder.closer
        for token_id in token_ids:
            at = self.length
            self.length = at + 1
            if self._state or token_id in telling:
                self._scan(token_id, at)
            else:
                self._lead = -1
            if 0 <= self.opened <= at:
                self.newest = token_id
                self.waits += token_id == self._counted
                self.begun = closer.step(self.begun, token_id)

    def _scan(self, token_id: int, at: int) -> None:
        """Follow the symbols of the token with index ``at``."""
        finder, state = self.finder, self._state
        symbols = finder.symbols(token_id)
        self._sizes = (*self._sizes, len(symbols))[-finder.longest :]
        begun = None  # where in this token a block opens
        for place, symbol in enumerate(symbols, 1):
            state = finder.texts.step(state, symbol)
            if self._lead >= 0:
                self._lead = self._lead + 1 if finder.depth[state] > self._lead else -1
            resumes = self._calls and state in finder.resumes
            self._calls = self._calls and not resumes
            if self.opened >= 0 and state in finder.closes:
                ended, length = finder.closes[state]
                # A token that holds the start as well, and nothing between, is none of the block.
                whole = place - length == begun
                self._end(ended, 1 if whole else self._spelling(length + len(symbols) - place))
                state = 0
            elif (
                (self.opened < 0 and state in finder.opens)
                or (self._lead > 0 and state in finder.opens)  # the start after all
                or (self.opened < 0 and resumes)
            ):
                begun = place
                self._open(at + (place == len(symbols)))
                state = finder.fresh
            elif state in finder.ends and not finder.resumes:
                self.carried = 0  # what a tool call interrupted does not go on
        self._state = state
        if not state:
            self._sizes = ()

    def _spelling(self, symbols: int) -> int:
        """Return how many of the latest tokens spell these symbols and nothing else."""
        count = 0
        for size in reversed(self._sizes):
            symbols -= size
            if symbols < 0:
                break
            count += 1
        return count

    def _end(self, ended: Ended, spelling: int) -> None:
        """End the open block; so many of its tokens spell what ended it."""
        tokens = max(0, self.length - self.opened - spelling)
        self.ended = ended, self.opened, tokens
        self._calls = self._calls or ended is Ended.TOOL_CALL
        self.carried = self.carried + tokens if ended is Ended.TOOL_CALL else 0
        self.blocks += 1
        self.spent += max(0, self.generated - spelling)
        self._open(-1)

    def _open(self, index: int) -> None:
        self.opened, self._lead = index, -1
        self._reset()


class Block(NamedTuple):
    """A thinking block of an answer.

    Attributes:
        start: Position in the output of its first token; negative if it opened in the prompt.
        tokens: How many tokens it has, in the prompt too, without its delimiters.
        end: Position of the last token of its end; ``None`` if it has not ended.
        ended: What ended it.
        waits: How many generated tokens in it are the token that is counted.
        carried: How many tokens it had before a tool call interrupted it: a block of its own here.
    """

    start: int
    tokens: int
    end: int | None
    ended: Ended | None
    waits: int
    carried: int

    def spent_at(self, budget: int) -> int:
        """Return the position in the output from which on a budget is spent."""
        return self.start + max(0, budget - self.carried)


def find_blocks(
    finder: Finder,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    inside: bool = False,
    counted: int | None = None,
) -> list[Block]:
    """Return the blocks in which tokens of the output lie, in their order.

    Args:
        finder: The delimiters.
        prompt_ids: The prompt.
        output_ids: The output.
        inside: Whether a block is open after the prompt, whatever it says.
        counted: A token to count.
    """
    progress = Progress(finder, counted, prompt_ids, inside=inside)
    begun, found = len(prompt_ids), []
    waits = carried = 0
    for position, token_id in enumerate(output_ids):
        ended = progress.blocks
        progress.read((token_id,))
        if progress.blocks > ended and progress.ended is not None:
            kind, first, tokens = progress.ended
            found.append(Block(first - begun, tokens, position, kind, waits, carried))
        waits, carried = progress.waits, progress.carried
    opened = progress.opened
    if opened >= 0 and begun + len(output_ids) > max(opened, begun):
        tokens = begun + len(output_ids) - opened
        found.append(Block(opened - begun, tokens, None, None, waits, carried))
    return found


def _after_last(tokens: Any, delimiter: tuple[int, ...]) -> int:
    """Return the index of the token after the last delimiter, 0 if there is none."""
    reach = len(delimiter) - 1
    ends = (tokens[reach:] == delimiter[-1]).nonzero()[0] + reach
    for back in range(1, len(delimiter)):
        ends = ends[tokens[ends - back] == delimiter[reach - back]]
    return int(ends[-1]) + 1 if len(ends) else 0
