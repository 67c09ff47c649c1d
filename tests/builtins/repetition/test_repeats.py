"""Repetition at the end of a text, compared with a naive definition."""

from array import array

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp.builtins.repetition.repeats import Tail

tokens = st.lists(st.integers(0, 2), max_size=40)


def repeats(text, distance):
    """Say by definition how many of the newest tokens are the same as those so much earlier."""
    count = 0
    while count + distance < len(text) and text[-1 - count] == text[-1 - count - distance]:
        count += 1
    return count


def check(tail, text, reach):
    runs = [repeats(text, distance) for distance in range(1, reach + 1)]
    assert tail.runs(np.arange(reach)).tolist() == runs
    for enough in (1, 2, np.arange(reach)):
        wanted = np.broadcast_to(enough, reach).tolist()
        reached = [place for place, run in enumerate(runs) if run >= wanted[place]]
        assert tail.reached(enough).tolist() == reached
    enough = np.arange(1, reach + 1)
    assert tail.tokens_to(enough) == min(
        wanted - run for wanted, run in zip(enough.tolist(), runs, strict=True)
    )
    known = min(reach, len(text))
    assert tail.following[:known].tolist() == text[::-1][:known]


@given(text=tokens, more=tokens, reach=st.integers(1, 50))
@example([1] * 30, [1] * 9, 12)
@example([*range(9), *range(50, 90), *range(9)], [], 80)
@example([*range(40), *range(50, 90), *range(40)], [], 100)
def test_each_distance_has_as_many_repetitions_as_by_definition(text, more, reach):
    tail = Tail(reach, array("q", text))
    check(tail, text, reach)

    for token_id in more:
        text.append(token_id)
        tail.push(token_id)
        check(tail, text, reach)


def test_a_long_text_is_followed_to_its_end():
    text = [i % 7 for i in range(2000)]
    tail = Tail(5)
    for token_id in text:
        tail.push(token_id)

    check(tail, text, 5)


def test_a_fork_grows_by_itself():
    tail = Tail(3, [1, 2, 1])
    fork = tail.fork()
    fork.push(2)
    tail.push(1)

    check(fork, [1, 2, 1, 2], 3)
    check(tail, [1, 2, 1, 1], 3)
