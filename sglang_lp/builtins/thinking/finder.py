"""The thinking delimiters of a request, compiled to be found in its tokens.

A delimiter is a text and counts whichever tokens spell it, as in SGLang's reasoning parsers. The
vocabulary says which bytes a token spells. A token whose bytes are unknown is compared as a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of
from sglang_lp.caches import KeptIds, shared_by_copies
from sglang_lp.processor import lasting
from sglang_lp.text.automaton import Automaton

if TYPE_CHECKING:
    from sglang_lp.builtins.prompt.prompts import Numbers
    from sglang_lp.served_model import ReasoningFormat
    from sglang_lp.text.vocabulary import Vocabulary

#: Tokens at the end of a prompt that are searched first: the latest delimiter is usually there.
_PIECE = 4_096
#: Symbols below this are bytes; a token of unknown bytes is the symbol ``_TOKENS + token_id``.
_TOKENS = 256
_NEW_LINE = 10


class EndCause(StrEnum):
    """The cause of a block's end."""

    END = "end"
    TOOL_CALL = "tool_call"


class BlockTokens(NamedTuple):
    """The tokens that open, close and interrupt a block.

    Attributes:
        start: Opens a block.
        end: Closes a block.
        before_end: Forced before ``end``.
        eos: Tokens that end the answer.
        tool_starts: Tokens that each open a tool call, and so end a block.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    before_end: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    tool_starts: tuple[int, ...] = ()


class Finder:
    """The compiled delimiters of a request, shared by its copies.

    It follows two automata: ``texts`` reads the symbols of every token and finds delimiters,
    ``closer`` reads the tokens of an open block and finds how much of the closing is written.

    Attributes:
        start: The tokens that open a block.
        end: The tokens that close a block.
        tool_starts: Tokens that each open a tool call, unless ``reads_text``.
        closing: The tokens that are forced to close a block: those before the end, then the end.
        closer: Automaton of ``closing`` and ``end``.
        next_token: For each state of ``closer``, the token that continues it.
        eos: The tokens that end the answer.
        others: The tokens that end the answer and are not in the end.
        closing_signs: For each number of written tokens of the end, its next token and ``others``.
        texts: Automaton of the delimiters; a symbol is a byte, or a token of unknown bytes.
        depth: For each state of ``texts``, how many symbols of a delimiter are written.
        longest: Symbols of the longest delimiter.
        opens: The states of ``texts`` in which a start is complete.
        closes: For each state of ``texts`` in which a block ends, the cause, and the number of
            symbols of the delimiter.
        ends: The states of ``closes`` in which an end is complete.
        resumes: The states of ``texts`` in which a tool call ends and its block continues.
        answers: The states of ``texts`` in which the answer after a block opens; empty if it
            follows the block at once.
        fresh: The state of ``texts`` after a delimiter.
        delimiters: The symbols that open, close, interrupt and continue a block. Finders with equal
            delimiters count the same tokens as thinking.
        reads_text: Whether delimiters count whichever tokens spell them.
        strict: Whether SGLang masks every token but the end once its own budget is spent.
        telling: The tokens that can change something when no delimiter and no closing is begun.
    """

    def __init__(
        self, tokens: BlockTokens, form: ReasoningFormat | None, vocabulary: Vocabulary | None
    ) -> None:
        self.start, self.end = tokens.start, tokens.end
        self.tool_starts = tokens.tool_starts
        self.closing = tokens.before_end + tokens.end
        self.closer = Automaton([self.closing, self.end])
        # ``closing`` was added first, so it comes first where both continue.
        self.next_token = [next(iter(after), self.closing[0]) for after in self.closer.children]
        self.eos = lasting([*dict.fromkeys(tokens.eos)])
        others = [token_id for token_id in dict.fromkeys(tokens.eos) if token_id not in self.end]
        self.others = lasting(others)
        self.closing_signs = [lasting([token_id, *others]) for token_id in self.end]
        self.reads_text = form is not None and vocabulary is not None
        self.strict = form is not None and form.strict
        self._vocabulary = vocabulary
        self._tokens = () if vocabulary is None else vocabulary.tokens
        self._kept: KeptIds[list[int]] = KeptIds()
        self._compile_texts(tokens, form)
        first = self.texts.children[0]
        telling = {symbol - _TOKENS for symbol in first if symbol >= _TOKENS}
        if vocabulary is not None:
            begun = [bytes([symbol]) for symbol in first if symbol < _TOKENS]
            telling.update(vocabulary.exact.containing(begun).tolist() if begun else ())
        self.telling = frozenset(telling.union(self.closer.children[0]))

    def _compile_texts(self, tokens: BlockTokens, form: ReasoningFormat | None) -> None:
        """Build the automaton of the delimiters, as their tokens and as the parser's texts."""
        starts, ends = [self._spelled(self.start)], [self._spelled(self.end)]
        tools = [self._spelled((token_id,)) for token_id in tokens.tool_starts]
        resumes: list[tuple[int, ...]] = []
        answers: list[tuple[int, ...]] = []
        line = 0
        if form is not None and self._tokens:
            line = int(form.tool_start_at_line_start)
            starts.append((*form.start.encode(),))
            ends += [(*text.encode(),) for text in (form.end, *form.other_ends)]
            tools = [(*([_NEW_LINE] * line), *text.encode()) for text in form.tool_starts]
            resumes += [(*form.tool_end.encode(),)] if form.tool_end else []
            answers = [symbols for text in form.answer_starts for symbols in self._named(text)]
        self.delimiters = tuple(map(frozenset, (starts, ends, tools, resumes)))
        self.texts = texts = Automaton([*starts, *ends, *tools, *resumes, *answers])
        self.fresh = texts.step(0, _NEW_LINE) if line else 0
        self.depth = [0] * len(texts.complete)
        for state, following in enumerate(texts.children):
            for after in following.values():
                self.depth[after] = self.depth[state] + 1
        self.longest = max(self.depth)
        self.opens = {*self._lengths(starts)}
        self.resumes = {*self._lengths(resumes)}
        self.answers = {*self._lengths(answers)}
        self.closes = {
            state: (EndCause.TOOL_CALL, length - line)
            for state, length in self._lengths(tools).items()
        }
        self.closes |= {
            state: (EndCause.END, length) for state, length in self._lengths(ends).items()
        }
        self.ends = {state for state, (cause, _) in self.closes.items() if cause is EndCause.END}
        #: For each state of ``texts`` in which part of a tool start is written, the rest of it.
        self._tool_begun = {
            self._state(symbols[:length]): symbols[length:]
            for symbols in tools
            for length in range(1 + line, len(symbols))
        }

    def _spelled(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the symbols of tokens."""
        return tuple(symbol for token_id in token_ids for symbol in self.symbols(token_id))

    def _named(self, text: str) -> Iterator[tuple[int, ...]]:
        """Yield the symbols of a text, and those with special tokens in place of their names."""
        yield (*text.encode(),)
        names = {} if self._vocabulary is None else self._vocabulary.names
        found = {name.decode(): _TOKENS + i for i, name in names.items() if name.decode() in text}
        if found:
            parts = re.split(f"({'|'.join(map(re.escape, found))})", text)
            yield tuple(
                symbol
                for part in parts
                for symbol in ((found[part],) if part in found else part.encode())
            )

    def _state(self, symbols: Sequence[int]) -> int:
        """Return the state of ``texts`` after the symbols of a delimiter, or of its beginning."""
        state = 0
        for symbol in symbols:
            state = self.texts.children[state][symbol]
        return state

    def _lengths(self, delimiters: Sequence[Sequence[int]]) -> dict[int, int]:
        """Return the states in which a delimiter is complete, each with its number of symbols."""
        found = {self._state(symbols): len(symbols) for symbols in delimiters}
        for state in self.texts.by_length():
            if state not in found and self.texts.shorter[state] in found:
                found[state] = found[self.texts.shorter[state]]
        return found

    def completing(self, state: int) -> Sequence[int]:
        """Return the tokens that complete the tool start that is begun in a state of ``texts``."""
        rest, vocabulary = self._tool_begun.get(state), self._vocabulary
        if rest is None or vocabulary is None:
            return ()
        starting = vocabulary.exact.starting_with
        return self._kept.of(state, lambda _: sorted(starting(bytes(rest)).tolist()))

    def symbols(self, token_id: int) -> Sequence[int]:
        """Return the symbols of a token: its bytes, or the token itself if they are unknown."""
        piece = self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""
        return piece or (_TOKENS + token_id,)

    def latest_of_prompt(self, prompt_ids: Sequence[int]) -> _Searched:
        """Find the latest delimiter of a prompt by its tokens, once for all copies of a request."""
        tokens = numbers_of(prompt_ids)
        # The end is searched before the whole prompt is compared with those of other copies.
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
    tokens: BlockTokens,
    form: ReasoningFormat | None = None,
    vocabulary: Vocabulary | None = None,
) -> Finder:
    """Return a :class:`Finder`, shared by all requests with the same delimiters.

    Args:
        tokens: The delimiters as tokens.
        form: The delimiters as texts of a reasoning parser; ``None`` for the tokens only.
        vocabulary: The bytes of each token; ``None`` to compare tokens.
    """
    return Finder(tokens, form, vocabulary)


def _after_last(tokens: Any, delimiter: tuple[int, ...]) -> int:
    """Return the index after the last occurrence of a delimiter, 0 if there is none."""
    reach = len(delimiter) - 1
    ends = (tokens[reach:] == delimiter[-1]).nonzero()[0] + reach
    for back in range(1, len(delimiter)):
        ends = ends[tokens[ends - back] == delimiter[reach - back]]
    return int(ends[-1]) + 1 if len(ends) else 0
