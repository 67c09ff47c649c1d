"""What is known of a model family that thinks, and which families are known."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAMILIES", "Family"]


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
    native: bool = False
    processor: str = ""


#: Every family that has a class; the classes in ``families`` enter themselves, in their order.
FAMILIES: list[Family] = []
