"""How models write that they think: what is known of families and of reasoning parsers."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAMILIES", "TOOL_STARTS", "Family", "ReasoningFormat"]


class ReasoningFormat(NamedTuple):
    """How reasoning is told from the rest of an answer, as a reasoning parser of SGLang does it.

    Attributes:
        start: Opens a block.
        end: Closes it; what a budget forces.
        tool_starts: Seen in an open block, each ends it without ``end``, and stays in the answer.
        tool_start_at_line_start: Whether a tool start counts at the start of a line alone.
        tool_end: After a tool call in a block the block goes on from here; empty if it does not.
        other_ends: More texts that end a block.
        can_begin_inside: Whether reasoning may be open from the first token, without ``start``.
        others: The same with the delimiters of other levels of effort.
        strict: Whether SGLang masks what is no end once a budget of its own is spent.
    """

    start: str
    end: str
    tool_starts: tuple[str, ...] = ()
    tool_start_at_line_start: bool = False
    tool_end: str = ""
    other_ends: tuple[str, ...] = ()
    can_begin_inside: bool = False
    others: tuple[ReasoningFormat, ...] = ()
    strict: bool = False


#: What opens a tool call without an end of the block before it, in the reasoning parsers of
#: SGLang 0.5.23; for models of which the tokenizer alone is known.
TOOL_STARTS = ("<tool_call>", "<tool_calls>", "<|tool_calls_section_begin|>")


class Family(NamedTuple):
    """How the models of a family write that they think.

    Attributes:
        models: Which models.
        start: What opens a thinking block. A tokenizer may add a suffix, ``<think:...>``.
        start_ids: The tokens of ``start``, usually one.
        end: What closes it.
        end_ids: The tokens of ``end``.
        new_line_id: The token of a single newline, forced before ``end`` as SGLang does;
            ``None`` if it is not known or the family writes none there.
        source: Where the figures come from. Issues and pull requests without a repository are
            those of sgl-project/sglang.
        tool_starts: What opens a tool call that ends a block.
        native: Whether the ids are the model's own alphabet: its tokenizer may give the strings
            other ids, and says nothing about these.
        processor: Name of the built-in class for them, set by the class that is given the row.
    """

    models: str
    start: str
    start_ids: tuple[int, ...]
    end: str
    end_ids: tuple[int, ...]
    new_line_id: int | None
    source: str
    tool_starts: tuple[str, ...] = ()
    native: bool = False
    processor: str = ""


#: Every family that has a class; the classes in ``families`` enter themselves, in their order.
FAMILIES: list[Family] = []
