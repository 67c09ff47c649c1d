"""A trace as one HTML file, which loads no other file."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp.errors import shown
from sglang_lp.trace.report import SHOWN

if TYPE_CHECKING:
    from sglang_lp.trace.answers import Likely
    from sglang_lp.trace.report import Trace

__all__ = ["colours", "sources", "write_page"]

#: Smallest probability that is shown.
_SMALLEST = 0.00005

#: The browser runs this script, applies this style sheet, and loads nothing.
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'; "
    "form-action 'none'"
)

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<div class="panes" id="heads"></div>
<p class="legend">
<span class="think">thinking</span>
<span class="forced">forced</span>
<span class="limited">limited: some tokens banned, or only some allowed</span>
<span class="biased">biased</span>
<span class="problem">contradicts the request </span>
</p>
<p class="say dim">Point at a token, or go there:
<kbd>←</kbd> <kbd>→</kbd> <kbd>Home</kbd> <kbd>End</kbd> token,
<kbd>n</kbd> <kbd>p</kbd> next and previous edit,
<kbd>x</kbd> next problem{split}.</p>
<noscript><p class="alarm">This page needs JavaScript. Without it, use
<code>sglang-lp trace --format text</code>.</p></noscript>
</header>
<div class="bars"><div class="panes" id="bars"></div></div>
<main><div class="panes" id="texts"></div></main>
<aside id="about" aria-live="polite"></aside>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(trace: Trace, beside: Trace | None = None, title: str = "Trace") -> str:
    """Return a page that shows a trace, or two side by side.

    Args:
        trace: The trace.
        beside: A second trace, for example of the answer without a processor.
        title: Title of the page.
    """
    script, style = _script(), _style()
    both = [trace] if beside is None else [trace, beside]
    data = {
        "panes": [_pane(one, f"Answer {number}") for number, one in enumerate(both, 1)],
        "split": None if beside is None else _split(trace, beside),
    }
    return _PAGE.format(
        policy=_POLICY.format(**sources()),
        title=escape(title),
        style=style,
        script=script,
        split="" if beside is None else ", <kbd>d</kbd> first difference, marked \u25c6",
        # No token can end the script element that holds it.
        data=orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS).decode().replace("<", "\\u003c"),
    )


def colours() -> str:
    """Return the part of the style sheet that names its colours, light and dark."""
    return _read("colours.css")


def sources() -> dict[str, str]:
    """Return the sources of a Content Security Policy that let the page run: script and style."""
    return {"script": _digest(_script()), "style": _digest(_style())}


def _script() -> str:
    return _read("page.js")


def _style() -> str:
    return colours() + _read("page.css")


def _pane(trace: Trace, title: str) -> dict[str, Any]:
    always = {index for index, edit in enumerate(trace.edits) if edit.always}
    steps = [[index for index in token.edits if index not in always] for token in trace.tokens]
    return {
        "title": title,
        "called": trace.names,
        "processors": [(name, _short(params)) for name, params in trace.processors],
        "text": trace.text,
        # In UTF-16 code units, as JavaScript counts.
        "lengths": [len(token.text.encode("utf-16-le")) // 2 for token in trace.tokens],
        "names": {place: token.name for place, token in enumerate(trace.tokens) if token.name},
        "ids": [token.token_id for token in trace.tokens],
        "edits": [
            {
                "by": edit.by,
                "what": edit.what.value,
                "words": trace.words(edit),
                "ids": edit.token_ids[:SHOWN],
                "values": [f"{value:+.3g}" for value in edit.values[:SHOWN]],
                "more": max(0, len(edit.token_ids) - SHOWN),
                "always": edit.always,
            }
            for edit in trace.edits
        ],
        "happened": {place: edits for place, edits in enumerate(steps) if edits},
        "looked": {place: one.looked for place, one in enumerate(trace.tokens) if one.looked},
        "problems": {place: trace.tokens[place].problem for place in trace.problems},
        "blocks": [block._asdict() for block in trace.blocks],
        "likely": {
            place: [(one.text, f"{share:.2%}") for one in likely if (share := _share(one))]
            for place, likely in enumerate(trace.likely)
        },
        "finish": trace.finish,
        "notes": trace.notes,
    }


def _share(one: Likely) -> float:
    """Return a probability; 0 if it would be displayed as 0."""
    share = math.exp(min(0.0, one.logprob))
    return share if share >= _SMALLEST else 0.0


def _short(params: Mapping[str, Any]) -> str:
    """Return parameters as JSON with long lists abridged."""
    cut = {
        key: [*value[:8], "..."] if isinstance(value, list | tuple) and len(value) > 8 else value  # noqa: PLR2004
        for key, value in params.items()
    }
    text = orjson.dumps(cut, default=shown).decode()
    return text if len(text) < 600 else f"{text[:600]}..."  # noqa: PLR2004


def _split(one: Trace, other: Trace) -> int | None:
    """Return the index of the first token that differs between two answers, or ``None``."""
    pairs = zip(one.tokens, other.tokens, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0].token_id == pair[1].token_id, pairs))
    return None if same == len(one.tokens) == len(other.tokens) else same


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
