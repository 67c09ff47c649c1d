"""Drafted tokens of speculative decoding, as a step reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Drafts(NamedTuple):
    """A tree of drafted tokens for each request of a batch.

    Node 0 of a tree is the newest token of the history; the logits of a node are those of the
    token after it. The logits of a request's node are in row ``request * width + node``.

    Attributes:
        width: Nodes of each tree.
        token_ids: For each request the token of each node; -1 for nodes that it lacks.
        first_child: For each request and node the first child, -1 for none.
        next_sibling: For each request and node the next child of the same parent, -1 for none.
    """

    width: int
    token_ids: Sequence[Sequence[int]]
    first_child: Sequence[Sequence[int]]
    next_sibling: Sequence[Sequence[int]]

    def numbers(self) -> Any:
        """Return token, first child and next sibling of each node, and 0, as an array, int64.

        Its shape is ``(requests, width, 4)``.
        """
        numbers = np.zeros((len(self.token_ids), self.width, 4), np.int64)
        for column, part in enumerate(self[1:]):
            numbers[:, :, column] = part
        return numbers
