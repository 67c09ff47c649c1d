"""The items that a request may get, against the items themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.catalogue.allowed import AllowedItems
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.index import NOWHERE
from sglang_lp.catalogue.sets import ItemSet
from support.catalogues import catalogues, index_of, node_after, whole

GROUPS = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=2), max_size=3)


def tokens_after(items, prefix):
    length = len(prefix)
    return sorted(
        {item[length] for item in items if item[:length] == prefix and len(item) > length}
    )


@given(catalogues(), GROUPS, st.data())
def test_the_tokens_after_a_prefix_are_those_that_lead_to_an_allowed_item(case, groups, data):
    items, ids, end, named = case
    index = index_of(*case)
    items = whole(items, end)
    left_out = data.draw(st.lists(st.sampled_from(ids), unique=True))
    only = data.draw(st.none() | st.lists(st.sampled_from(ids), unique=True))

    # Ids that share their tokens are one item: in a set, left out and chosen by any of them.
    def those(of):
        return {item for one, item in zip(ids, items, strict=True) if one in of}

    expected = {*items} - those(left_out)
    for group in groups:
        has = {item for name in group for item, own in zip(items, named[name], strict=True) if own}
        expected &= has
    if only is not None:
        expected &= those(only)

    every = AllowedItems(index, ItemSet.of(index, groups) if groups else None)
    chosen = None if only is None else index.ranks_of(only)[0]
    allowed = every.restrict(index.ranks_of(left_out)[0], chosen)

    assert allowed.total == len(expected)
    assert allowed.is_all == (expected == {*items})
    for prefix in {item[:n] for item in items for n in range(len(item) + 1)}:
        node, depth = node_after(index, prefix), len(prefix)
        after = tokens_after(expected, prefix)
        assert allowed.tokens(node, depth).tolist() == after
        if not allowed.restricts(node):
            assert every.tokens(node, depth).tolist() == after
        for token in tokens_after(items, prefix):
            found = allowed.child(node, depth, token)
            assert found == (index.child(node, token) if token in after else NOWHERE)


@pytest.mark.parametrize("items", [1, 7, 63, 64, 65, 128, 1000])
def test_members_below_a_rank_are_counted_at_every_word_boundary(items):
    there = np.random.default_rng(items).random(items) < 0.4
    members = ItemSet(np.packbits(there), items)

    ranks = np.arange(items + 1)
    assert members.total == there.sum()
    assert members.below(ranks).tolist() == [there[:rank].sum() for rank in ranks]
    assert members.has(ranks[:-1]).tolist() == there.tolist()


def test_a_leaf_leads_nowhere():
    index = build(np.array([[1, 2]], dtype=np.int32))

    assert not AllowedItems(index).tokens(node_after(index, [1, 2]), 2)
