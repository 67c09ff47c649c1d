"""The index of a catalogue against dictionaries of prefixes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.catalogue.build import PAD, build
from sglang_lp.catalogue.index import NOWHERE, ROOT, CatalogueError
from support.catalogues import catalogues, index_of, node_after, whole


@given(catalogues())
def test_a_node_has_the_children_that_lead_to_an_item_and_no_others(case):
    items, _, end, _ = case
    index = index_of(*case)
    items = whole(items, end)

    prefixes = {item[:n] for item in items for n in range(len(item) + 1)}
    assert index.shape.nodes == len(prefixes)
    for prefix in prefixes:
        node = node_after(index, prefix)
        start, stop = index.children(node)
        after = sorted(
            {
                item[len(prefix)]
                for item in items
                if item[: len(prefix)] == prefix and len(item) > len(prefix)
            }
        )
        assert index.arrays.token[start:stop].tolist() == after
        assert [index.child(node, token) for token in after] == [*range(start, stop)]
        assert index.depth(node) == len(prefix)
        assert index.child(node, 98) == NOWHERE
        assert index.is_item(node) == (prefix in items)


@given(catalogues())
def test_items_are_found_by_their_tokens_and_by_their_ids(case):
    items, ids, end, _ = case
    index = index_of(*case)
    items = whole(items, end)

    for item in items:
        rank = index.rank(node_after(index, item))
        assert index.tokens_of(rank) == list(item)
        assert sorted(index.ids_of(rank)) == sorted(
            one for one, other in zip(ids, items, strict=True) if other == item
        )
    for one, item in zip(ids, items, strict=True):
        assert index.ranks_of([one])[0].tolist() == [index.rank(node_after(index, item))]
    assert index.ranks_of(ids)[0].tolist() == [*range(index.shape.items)]


@given(catalogues())
def test_the_ranks_below_a_node_are_those_of_its_items(case):
    items, _, end, _ = case
    index = index_of(*case)
    items = whole(items, end)

    for prefix in {item[:n] for item in items for n in range(len(item) + 1)}:
        node = node_after(index, prefix)
        depth = index.depth(node)
        below = {
            index.rank(node_after(index, item)) for item in items if item[: len(prefix)] == prefix
        }
        assert {*range(*index.span(node, depth))} == below
        start, stop = index.children(node)
        if start < stop:
            spans = [index.span(child, depth + 1) for child in range(start, stop)]
            bounds = index.bounds(start, stop, depth + 1).tolist()
            assert [*pairwise(bounds)] == spans
        if prefix:
            every = np.arange(index.shape.items, dtype=np.int32)
            assert np.flatnonzero(index.above(every, depth) == node).tolist() == sorted(below)


@given(catalogues())
def test_the_version_depends_on_the_items_and_not_on_their_order(case):
    items, ids, end, named = case
    index = index_of(*case)

    turned = {name: own[::-1] for name, own in named.items()}
    assert index_of(items[::-1], ids[::-1], end, named=turned).version == (
        index.version
        if len({*items}) == len(items)
        else index_of(items[::-1], ids[::-1], end, turned).version
    )
    other = [(*items[0][:-1], items[0][-1] + 1), *items[1:]]
    if not {*other} <= {*items} or len({*other}) != len({*items}):
        assert index_of(other, ids, end, named).version != index.version


@pytest.mark.parametrize("codes", [41, 1 << 13, 1 << 20])
@pytest.mark.parametrize("levels", [2, 4, 9])
def test_keys_of_any_width_sort_alike(codes, levels):
    random = np.random.default_rng(codes + levels)
    items = random.integers(0, codes, (3000, levels), dtype=np.int32)
    items[1500:] = items[:1500]
    items[1500:, -1] += random.integers(0, 2, 1500, dtype=np.int32)

    index = build(items)

    order = np.unique(items, axis=0)
    assert index.shape.items == len(order)
    assert [index.rank(node_after(index, item)) for item in order.tolist()] == [*range(len(order))]


def test_the_root_is_no_item_and_nowhere_has_no_children():
    index = build(np.array([[1], [2]], dtype=np.int32))

    assert not index.is_item(ROOT)
    assert not index.is_item(NOWHERE)
    assert index.children(NOWHERE) == (0, 0)
    assert node_after(index, [3, 1]) == NOWHERE


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        (np.zeros((0, 3), np.int32), {}, "at least one item"),
        (np.full((1, 33), 1, np.int32), {}, "at most 32 tokens"),
        (np.array([[-2]], np.int32), {}, "token ids from 0"),
        (np.array([[1 << 24]], np.int32), {}, "token ids from 0"),
        (np.array([[1, PAD, 2]], np.int32), {}, "item 0: expected its tokens without a gap"),
        (np.array([[PAD, PAD]], np.int32), {}, "item 0: expected its tokens without a gap"),
        (np.array([[5, PAD], [5, 6]], np.int32), {}, "item 0 is the beginning of item 1"),
        (np.array([[5]], np.int32), {"end": -3}, "end: expected a token id"),
        (np.array([[5], [6]], np.int32), {"ids": np.array([4, 4])}, "1 repeated: 4"),
        (np.array([[5], [6]], np.int32), {"ids": np.array([4])}, "an id for each of 2 items"),
    ],
)
def test_bad_items_are_refused_with_the_reason(items, options, message):
    with pytest.raises(CatalogueError, match=message):
        build(items, **options)


def test_shorter_items_need_no_end_where_none_is_the_beginning_of_another():
    index = build(np.array([[5, PAD], [6, 7], [6, 8]], np.int32))

    assert index.is_item(node_after(index, [5]))
    assert not index.is_item(node_after(index, [6]))
    assert index.rank(node_after(index, [6, 8])) == 2


@pytest.mark.parametrize(
    ("ids", "wanted", "found", "unknown"),
    [
        ([3, 4], [5, 4], [1], 1),
        ([3, 4], [*range(10, 20)], [], 10),
        ([3, 4], [2**70, -(2**70), 3], [0], 2),
        ([b"a", b"bc"], ["bcd", "bc\0", "", "a"], [0], 3),
    ],
)
def test_ids_that_the_catalogue_lacks_are_counted(ids, wanted, found, unknown):
    index = build(np.array([[5], [6]], np.int32), np.array(ids))
    ranks, missing = index.ranks_of(wanted)

    assert (ranks.tolist(), missing) == (found, unknown)


@pytest.mark.parametrize(
    ("ids", "wanted", "message"),
    [
        ([3, 4], ["3"], "entry 0: expected item ids, which are whole numbers"),
        ([3, 4], [True], "entry 0: expected item ids, which are whole numbers"),
        ([b"a", b"bc"], ["a", 1], "entry 1: expected item ids, which are texts"),
    ],
)
def test_ids_of_another_type_are_refused(ids, wanted, message):
    index = build(np.array([[5], [6]], np.int32), np.array(ids))

    with pytest.raises(CatalogueError, match=message):
        index.ranks_of(wanted)


@given(catalogues(), st.sets(st.integers(0, 99), max_size=3))
def test_no_item_has_a_token_inside_that_ends_an_answer(case, ends):
    items, _, end, _ = case
    index = index_of(*case)
    inside = any({*item[:-1]} & ends for item in whole(items, end))

    assert (index.misfit(None, ends) is not None) == inside


def test_a_token_that_ends_an_answer_inside_of_an_item_is_named_with_the_item():
    index = build(np.array([[1, 2, 3], [1, 4, 2]]), np.array([b"tea", b"cup"]))

    assert index.misfit(5, [3]) is None
    assert index.misfit(5, [2]) == (
        "expected items without a token that ends an answer of the model, got 2 inside of 1 "
        "beginnings of items, such as item 'tea': the answer would end there; leave these items out"
    )
    assert "0 to 3, got 4; build it for this model" in index.misfit(4, [2])


def test_an_end_inside_of_an_item_is_refused():
    with pytest.raises(CatalogueError, match=r"item 1: expected the end token 7 only after items"):
        build(np.array([[1, 2], [7, 3]]), end=7)
