"""The index of a catalogue against dictionaries of prefixes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.catalogue import sets
from sglang_lp.catalogue.build import PAD, build
from sglang_lp.catalogue.index import NOWHERE, ROOT, CatalogueError

END = 99


def padded(items):
    width = max(map(len, items))
    return np.array([[*item, *[PAD] * (width - len(item))] for item in items], dtype=np.int32)


@st.composite
def catalogues(draw, *, ragged=None):
    """Items, their ids, whether an end token is put behind them, and two sets."""
    tokens = st.integers(0, draw(st.sampled_from([1, 3, 40])))
    is_ragged = draw(st.booleans()) if ragged is None else ragged
    width = draw(st.integers(1, 5))
    lengths = st.integers(1, width) if is_ragged else st.just(width)
    items = draw(
        st.lists(lengths.flatmap(lambda n: st.tuples(*[tokens] * n)), min_size=1, max_size=40)
    )
    ids = draw(
        st.one_of(
            st.lists(st.integers(-(2**63), 2**63 - 1), unique=True),
            st.lists(st.text("äb€c", min_size=1, max_size=5), unique=True),
        ).map(lambda found: found[: len(items)])
    )
    items = items[: max(1, len(ids))]
    ids = ids or [7]
    items = items[: len(ids)]
    end = END if is_ragged else draw(st.sampled_from([None, END]))
    members = [draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))) for _ in "ab"]
    return items, ids, end, dict(zip("ab", members, strict=True))


def index_of(items, ids, end, named):
    if isinstance(ids[0], str):
        raw = np.array([one.encode() for one in ids], dtype=bytes)
    else:
        raw = np.array(ids, dtype=np.int64)
    return build(
        padded(items), raw, end=end, sets={name: np.array(own) for name, own in named.items()}
    )


def whole(items, end):
    return [item if end is None else (*item, end) for item in items]


@given(catalogues())
def test_a_node_has_the_children_that_lead_to_an_item_and_no_others(case):
    items, _, end, _ = case
    index = index_of(*case)
    items = whole(items, end)

    prefixes = {item[:n] for item in items for n in range(len(item) + 1)}
    assert index.shape.nodes == len(prefixes)
    for prefix in prefixes:
        node = index.walk(prefix)
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
        rank = index.rank(index.walk(item))
        assert index.tokens_of(rank) == list(item)
        assert sorted(index.ids_of(rank)) == sorted(
            one for one, other in zip(ids, items, strict=True) if other == item
        )
    for one, item in zip(ids, items, strict=True):
        assert index.ranks_of([one]).tolist() == [index.rank(index.walk(item))]
    assert index.ranks_of(ids).tolist() == [*range(index.shape.items)]


@given(catalogues())
def test_the_ranks_below_a_node_are_those_of_its_items(case):
    items, _, end, _ = case
    index = index_of(*case)
    items = whole(items, end)

    for prefix in {item[:n] for item in items for n in range(len(item) + 1)}:
        node = index.walk(prefix)
        low, high = index.ranks(node, node + 1, index.depth(node))
        below = {index.rank(index.walk(item)) for item in items if item[: len(prefix)] == prefix}
        assert {*range(low[0], high[0])} == below


@given(catalogues())
def test_a_mark_says_whether_an_item_of_the_set_is_below_a_node(case):
    items, _, end, named = case
    index = index_of(*case)
    items = whole(items, end)

    in_set = {
        "a": named["a"],
        "a or b": [x or y for x, y in zip(*named.values(), strict=True)],
    }
    found = {
        "a": sets.marks(index, sets.members(index, "a")),
        "a or b": sets.marks(index, sets.union(index, ["a", "b"])),
    }
    for name, has in in_set.items():
        there = {item for item, own in zip(items, has, strict=True) if own}
        for prefix in {item[:n] for item in items for n in range(len(item) + 1)}:
            expected = any(item[: len(prefix)] == prefix for item in there)
            assert found[name][index.walk(prefix)] == expected


@given(catalogues())
def test_the_intersection_of_sets_has_the_items_that_are_in_all_of_them(case):
    items, _, end, named = case
    index = index_of(*case)

    both = sets.intersection(index, ["a", "b"])
    # Ids that share their tokens are one item, which is in a set if one of them is.
    for item in {*items}:
        own = [
            any(has for has, other in zip(named[name], items, strict=True) if other == item)
            for name in "ab"
        ]
        assert both[index.rank(index.walk(whole([item], end)[0]))] == all(own)


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
    assert [index.rank(index.walk(item)) for item in order.tolist()] == [*range(len(order))]


def test_the_root_is_no_item_and_nowhere_has_no_children():
    index = build(np.array([[1], [2]], dtype=np.int32))

    assert not index.is_item(ROOT)
    assert not index.is_item(NOWHERE)
    assert index.children(NOWHERE) == (0, 0)
    assert index.walk([3, 1]) == NOWHERE


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

    assert index.is_item(index.walk([5]))
    assert not index.is_item(index.walk([6]))
    assert index.rank(index.walk([6, 8])) == 2


@pytest.mark.parametrize(
    ("ids", "wanted", "message"),
    [
        ([3, 4], [5], "expected items of the catalogue, got 1 others: 5; leave"),
        ([3, 4], [*range(10, 20)], "got 10 others: 10, 11, 12, 13, 14, ...; leave"),
        ([3, 4], [2**70], "1 others"),
        ([3, 4], ["3"], "entry 0: expected item ids, which are whole numbers"),
        ([3, 4], [True], "entry 0: expected item ids, which are whole numbers"),
        ([b"a", b"bc"], ["bcd"], "1 others: 'bcd'"),
        ([b"a", b"bc"], ["bc\0"], "1 others"),
        ([b"a", b"bc"], [1], "entry 0: expected item ids, which are texts"),
    ],
)
def test_unknown_items_are_named(ids, wanted, message):
    index = build(np.array([[5], [6]], np.int32), np.array(ids))

    with pytest.raises(CatalogueError, match=message):
        index.ranks_of(wanted)
