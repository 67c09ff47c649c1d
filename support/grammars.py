"""Grammars of xgrammar's, a vocabulary for them, and models that write answers in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from sglang_lp.closing.automaton import read
from sglang_lp.closing.plans import Json, Plans
from sglang_lp.closing.row import ClosingRow
from sglang_lp.closing.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Token id of the end of an answer.
END = 0

#: Tokens of several bytes: such as open several levels or close several, and words.
_LONG = [
    *(
        b'{"',
        b'"}',
        b'":',
        b'": ',
        b'", "',
        b'","',
        b'"},',
        b'"}]',
        b"}}",
        b"]]",
        b"[[",
        b"[{",
        b"}]",
    ),
    *(
        b'":"',
        b'":{"',
        b'":["',
        b'"]}',
        b"},{",
        b"{}",
        b"[]",
        b"null",
        b"true",
        b"false",
        b"  ",
        b"    ",
    ),
    *(b"\n  ", b"\n    ", b"0.", b"10", b"e-", b"000", b"name", b"the", b" sheep", b"aaaa", b"aa"),
    *("ä".encode(), "äh".encode(), "€".encode(), "😀".encode(), b"\x80\x80", b"zz", b"-x"),
]
#: Bytes that begin no character, or of which only some continuations are one. xgrammar allows them
#: all; without their tokens every text that it allows is UTF-8.
_UNFIT = b"\xc0\xc1\xe0\xed\xf0\xf4" + bytes(range(0xF5, 0x100))
_BYTES = [bytes((i,)) for i in range(256) if i not in _UNFIT]
SPELLED: list[bytes] = [b"", *_BYTES, *dict.fromkeys(_LONG)]

#: Chooses one of the token ids that a mask allows.
Model = Callable[[Random, Sequence[int]], int]


def uniform(some: Random, allowed: Sequence[int]) -> int:
    """Choose any token."""
    return some.choice(allowed)


def chatty(some: Random, allowed: Sequence[int]) -> int:
    """Choose a token that closes nothing, and long ones, if there is one."""
    going_on = [one for one in allowed if not set(SPELLED[one]) & set(b'"}]') and one != END]
    return max(some.choices(going_on or allowed, k=3), key=lambda one: len(SPELLED[one]))


def opening(some: Random, allowed: Sequence[int]) -> int:
    """Choose a token that opens something, if there is one."""
    opens = [one for one in allowed if set(SPELLED[one]) & set(b"{[,")]
    return some.choice(opens or allowed)


MODELS: tuple[Model, ...] = (uniform, chatty, opening)


class Compiled(NamedTuple):
    """A compiled grammar.

    Attributes:
        context: xgrammar's.
        plans: How its texts end.
    """

    context: Any
    plans: Plans


@cache
def vocabulary() -> GrammarVocabulary:
    """Return the vocabulary of :data:`SPELLED`."""
    return GrammarVocabulary(SPELLED, [END])


@cache
def _compiler() -> Any:
    import xgrammar

    raw = xgrammar.VocabType.RAW
    spelled = [b"<end>", *SPELLED[1:]]
    info = xgrammar.TokenizerInfo(spelled, raw, vocab_size=len(spelled), stop_token_ids=[END])
    return xgrammar.GrammarCompiler(info, max_threads=1)


def compile_context(kind: str, grammar: Any) -> Any:
    """Compile a grammar with xgrammar.

    Args:
        kind: ``json_schema``, ``regex``, ``ebnf`` or ``structural_tag``.
        grammar: A text; or a schema or tag as an object.
    """
    compiler = _compiler()
    text = grammar if isinstance(grammar, str) else orjson.dumps(grammar).decode()
    if kind == "json_schema":
        return compiler.compile_json_schema(text, max_whitespace_cnt=4)
    if kind == "regex":
        return compiler.compile_regex(text)
    if kind == "structural_tag":
        return compiler.compile_structural_tag(text)
    return compiler.compile_grammar(text)


def compile_grammar(kind: str, grammar: Any, banned: Sequence[int] = ()) -> Compiled:
    """Compile a grammar, and make its plans.

    Args:
        kind: As for :func:`compile_context`.
        grammar: As for :func:`compile_context`.
        banned: Token ids that no answer may use.

    Raises:
        Unsupported: As for :class:`Plans`.
    """
    context = compile_context(kind, grammar)
    automaton = read(context)
    own = vocabulary().without(banned)
    json: Json = "whole" if kind == "json_schema" else "none"
    if kind == "structural_tag":
        json = "parts"
    return Compiled(context, Plans(automaton, own, json=json))


class Answer(NamedTuple):
    """An answer that a model wrote.

    Attributes:
        text: Its bytes.
        token_ids: Its tokens, the end included.
        ended: Whether its end token came.
        led: As for :class:`ClosingRow`.
    """

    text: bytes
    token_ids: list[int]
    ended: bool
    led: int | None


class Trial(NamedTuple):
    """How an answer is written.

    Attributes:
        limit: Most tokens.
        model: Chooses the tokens.
        seed: Of the model.
        leads: Whether its mask is narrowed.
        drafts: Tokens of a draft before each token, all of which are taken back.
        banned: Tokens that a processor bans after the mask.
    """

    limit: int
    model: Model
    seed: int
    leads: bool = True
    drafts: int = 0
    banned: Sequence[int] = ()


def write(compiled: Compiled, trial: Trial) -> Answer:
    """Let a model write an answer."""
    import xgrammar

    some = Random(trial.seed)  # noqa: S311 - it chooses tokens
    matcher = xgrammar.GrammarMatcher(compiled.context)
    mask = xgrammar.allocate_token_bitmask(1, len(SPELLED))
    row = ClosingRow(compiled.plans, trial.limit)
    accepted: list[int] = []

    def allowed() -> list[int]:
        matcher.fill_next_token_bitmask(mask)
        words: NDArray[np.int32] = mask.numpy()[0]
        if trial.leads and not row.sleeps(len(accepted), 0):
            row.narrow(words, accepted)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(SPELLED)]
        found: list[int] = np.flatnonzero(bits).tolist()
        return [one for one in found if one not in trial.banned]

    def draft() -> None:
        written = 0
        allowed()
        for _ in range(trial.drafts):
            if matcher.is_terminated() or len(accepted) >= trial.limit:
                break
            token = trial.model(some, allowed())
            assert matcher.accept_token(token)
            accepted.append(token)
            written += 1
        if written:
            matcher.rollback(written)
            del accepted[-written:]
            row.rewind(len(accepted), len(accepted))

    while len(accepted) < trial.limit and not matcher.is_terminated():
        draft()
        token = trial.model(some, allowed())
        assert matcher.accept_token(token), (accepted, token)
        accepted.append(token)
    text = b"".join(SPELLED[one] for one in accepted)
    return Answer(text, accepted, bool(matcher.is_terminated()), row.led)
