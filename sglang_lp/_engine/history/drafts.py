"""Drafted tokens of speculative decoding, as a step reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Drafts(NamedTuple):
    """A tree of drafted tokens for each request of a batch.

    Node 0 of a tree is the newest token of the history; the logits of a node are those of the
    token after it. The logits of a request's node are in row ``request * width + node``.

    Attributes:
        width: Nodes of each tree.
        token_ids: For each request the token of each node.
        first_child: For each request and node the first child, -1 for none.
        next_sibling: For each request and node the next child of the same parent, -1 for none.
    """

    width: int
    token_ids: Sequence[Sequence[int]]
    first_child: Sequence[Sequence[int]]
    next_sibling: Sequence[Sequence[int]]
