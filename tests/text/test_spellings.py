"""All ways to spell choices, against a naive search."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.text.choosing import TextChoices
from sglang_lp.text.spellings import spellings
from sglang_lp.text.vocabulary import Vocabulary

PIECES = [b"a", b"b", b"ab", b"ba", b"a", b"abb", b""]


def naive(text):
    """Return all sequences of pieces that spell a text."""
    if not text:
        return [()]
    return [
        (token_id, *rest)
        for token_id, piece in enumerate(PIECES)
        if piece and text.startswith(piece)
        for rest in naive(text[len(piece) :])
    ]


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
    st.integers(0, 60),
)
def test_every_sequence_that_spells_a_choice_is_found_unless_there_are_too_many(texts, most):
    expected = {text.encode(): sorted(naive(text.encode())) for text in texts}

    found = spellings(TextChoices(Vocabulary(PIECES), texts), most)

    if sum(map(len, expected.values())) > most:
        assert found is None
    else:
        assert {text: sorted(ways) for text, ways in (found or {}).items()} == expected
