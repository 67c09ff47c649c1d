"""A draft of the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_lp._engine.history.drafts import Drafts


def drafted_twice(token_ids: Sequence[int]) -> Callable[[], Drafts]:
    """Return a draft of one request, for the engine to ask for.

    Every node has the next token twice, and the draft goes on below the second. So a state that is
    not forked sees a token too often.

    Args:
        token_ids: The drafted tokens; the draft has two nodes for each, and its root.
    """
    depth = len(token_ids)
    tokens = [0, *(token_id for token_id in token_ids for _ in range(2))]
    # -1 is no node. The pairs follow the root.
    first_child = [1, *(child for i in range(depth) for child in (-1, 2 * i + 3))]
    first_child[-1] = -1
    next_sibling = [-1, *(sibling for i in range(depth) for sibling in (2 * i + 2, -1))]
    drafts = Drafts(len(tokens), [tokens], [first_child], [next_sibling])
    return lambda: drafts
