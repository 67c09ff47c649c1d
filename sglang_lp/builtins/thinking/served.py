"""Delimiters and tool calls of the served reasoning parser, which decide what is thinking."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins.thinking.delimiters import find_tool_starts, resolve
from sglang_lp.builtins.thinking.finder import BlockTokens, Finder, finder_for
from sglang_lp.errors import RequestError
from sglang_lp.text.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from sglang_lp.served_model import ServedModel


def delimiter_texts(params: Any, served: ServedModel) -> tuple[str | None, str | None]:
    """Return the texts of the delimiters: the request's, or the served parser's.

    Args:
        params: Parameters; they may have ``thinking_start`` and ``thinking_end``.
        served: The model.
    """
    start = getattr(params, "thinking_start", None)
    if start is not None or served.reasoning is None:
        return start, getattr(params, "thinking_end", None)
    return served.reasoning.start, served.reasoning.end


def served_finder(
    tokens: BlockTokens, served: ServedModel, tool_starts: tuple[str, ...] | None
) -> Finder:
    """Return the finder of delimiters: by text if they are those of the served reasoning parser.

    Args:
        tokens: The delimiters.
        served: The model.
        tool_starts: Texts that open a tool call where the delimiters are not the parser's;
            ``None`` if ``tokens`` has the tool starts.
    """
    tokenizer, form, vocabulary = served.tokenizer, served.reasoning, None
    if form is not None and tokenizer is not None:
        with suppress(RequestError):
            found = resolve(tokenizer, form.start, form.end)
            if (found.start_ids, found.end_ids) == (tokens.start, tokens.end):
                vocabulary = vocabulary_of(tokenizer)
    if vocabulary is None:
        form = None
    if tool_starts is not None and tokenizer is not None:
        texts = tool_starts if form is None else form.tool_starts
        tokens = tokens._replace(tool_starts=find_tool_starts(tokenizer, texts))
    return finder_for(tokens, form, vocabulary)
