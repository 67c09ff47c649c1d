"""A trace as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import orjson

from sglang_lp.errors import shown
from sglang_lp.trace.replay import What

if TYPE_CHECKING:
    from sglang_lp.trace.replay import Edit
    from sglang_lp.trace.report import Trace

__all__ = ["write_lines"]

#: Longest text of tokens without edits.
_WIDTH = 100
#: Tokens of an edit that are named.
_FEW = 8


def write_lines(trace: Trace) -> str:
    """Return a trace as text: a line for each token with edits, the rest abridged."""
    return "\n".join([*_head(trace), "", *_body(trace)]) + "\n"


def _head(trace: Trace) -> Iterator[str]:
    for name, params in trace.processors:
        yield f"processor  {name} {_quoted(params)}"
    if not trace.processors:
        yield "processor  none"
    for edit in trace.edits:
        if edit.always:
            yield f"throughout {trace.words(edit)}{_listed(trace, edit)}"
    for block in trace.blocks:
        closed = f"closed by {block.closed}" if block.closed else "not closed"
        yield f"thinking   {block.start} to {block.stop - 1}, {closed}"
    if trace.finish:
        yield f"ended      {shown(trace.finish, 200)[1:-1]}"
    for note in trace.notes:
        yield f"note       {note}"
    count = len(trace.problems)
    yield f"problems   {f'{count}, the first at position {trace.problems[0]}' if count else 'none'}"


def _body(trace: Trace) -> Iterator[str]:
    free: list[str] = []
    for place, token in enumerate(trace.tokens):
        said = [*_said(trace, place)]
        if not said:
            free.append(token.text or token.name)
            continue
        yield from _free(place, free)
        free = []
        yield f"{place:>7}  {_quoted(token.text or token.name)}"
        yield from (f"         {line}" for line in said)
    yield from _free(len(trace.tokens), free)


def _said(trace: Trace, place: int) -> Iterator[str]:
    token = trace.tokens[place]
    if token.problem:
        yield f"PROBLEM  {token.problem}"
    for index in token.edits:
        edit = trace.edits[index]
        if not edit.always:
            by = f"{trace.processors[edit.by][0]}: " if len(trace.processors) > 1 else ""
            few = "" if edit.what is What.FORCED else _listed(trace, edit)
            yield f"{by}{trace.words(edit)}{few}"
    if token.looked:
        yield f"looked at the {token.looked} likeliest tokens"


def _free(stop: int, texts: list[str]) -> Iterator[str]:
    if texts:
        text = _quoted("".join(texts))
        if len(text) > _WIDTH:
            text = f"{text[: _WIDTH // 2]} ... {text[-_WIDTH // 2 :]}"
        start = stop - len(texts)
        yield f"{start:>7}  {text}  ({len(texts)} free)"


def _listed(trace: Trace, edit: Edit) -> str:
    names = trace.listed(edit)
    few = [_quoted(name) for name in names[:_FEW]]
    return f"  [{', '.join(few)}{', ...' if len(names) > _FEW else ''}]" if few else ""


def _quoted(value: object) -> str:
    """Return JSON without control characters for the terminal."""
    text = orjson.dumps(value, default=str).decode()
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)
