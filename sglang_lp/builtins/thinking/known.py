"""How the known families of models write that they think."""

from __future__ import annotations

from typing import NamedTuple

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
