"""The bounded cache of tables that can be made again."""

from types import SimpleNamespace

from sglang_lp.closing.keeping import Keeping


def test_what_was_used_last_is_kept_up_to_a_number_of_bytes():
    keeping = Keeping(most_bytes=100)
    made = []

    def get(key):
        def make():
            made.append(key)
            return SimpleNamespace(nbytes=40)

        return keeping.get(key, make)

    one = get(1)
    get(2)
    assert get(1) is one
    get(3)
    assert get(1) is one
    get(2)
    assert made == [1, 2, 3, 2]
