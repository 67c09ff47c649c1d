"""How much one HTTP request may list, in all of its texts and copies together."""

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.bounds import MAX_ENTRIES, check_entries, entries


def test_entries_are_those_of_lists_and_objects():
    params = {"token_ids": [1, 2, 3], "more": {"a": 1}, "thinking_budget": 5, "text": "abc"}

    assert entries(params) == 4
    assert entries(None) == 0


@pytest.mark.parametrize(
    ("counts", "copies"), [([MAX_ENTRIES], 1), ([MAX_ENTRIES // 8] * 4, 2), ([], 100)]
)
def test_as_many_entries_as_the_limit_are_taken(counts, copies):
    check_entries(counts, copies)


@pytest.mark.parametrize(
    ("counts", "copies"),
    [([MAX_ENTRIES + 1], 1), ([MAX_ENTRIES // 8] * 9, 1), ([MAX_ENTRIES // 8 + 1], 8)],
)
def test_more_are_refused_with_the_limit(counts, copies):
    with pytest.raises(RequestError, match=str(MAX_ENTRIES)):
        check_entries(counts, copies)
