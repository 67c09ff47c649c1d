"""What one HTTP request may ask for in all its rows together."""

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.bounds import MAX_LISTED, check_listed

EIGHTH = [7] * (MAX_LISTED // 8)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(None, 1000)],
        [({"token_ids": EIGHTH}, 8)],
        [({"token_ids": EIGHTH}, 1)] * 8,
        [({"0.token_ids": EIGHTH, "1.token_ids": tuple(EIGHTH), "max": 5}, 4)],
        [({"token_ids": [7]}, MAX_LISTED)],
    ],
)
def test_rows_may_list_so_much_together(rows):
    check_listed(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [({"token_ids": EIGHTH}, 9)],
        [({"token_ids": EIGHTH}, 1)] * 9,
        [({"token_ids": EIGHTH}, 8), ({"token_ids": [7]}, 1)],
        [({"0.token_ids": EIGHTH, "1.token_ids": tuple(EIGHTH), "2.token_ids": {7}}, 4)],
        [({"token_ids": [7, 7]}, MAX_LISTED)],
    ],
)
def test_more_is_refused_with_the_limit(rows):
    with pytest.raises(RequestError, match=rf"at most {MAX_LISTED} entries .* got \d+"):
        check_listed(rows)
