"""A text in every form that Unicode holds to be the same."""

from itertools import permutations
from types import SimpleNamespace
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.errors import RequestError
from sglang_lp.text.canonical import canonical_forms, in_all_forms
from sglang_lp.text.vocabulary import Vocabulary

#: Characters that compose, singletons, marks of two classes, Hangul, and ones that never compose.
SOME = "eaoEnAkK\u0301\u0302\u0323\u0307é\u1ebfệÅ\u212b\u212a한글\u1112\u1161\u11ab\u0958x"


def equivalent(one, other):
    return normalize("NFD", one) == normalize("NFD", other)


@given(st.text(SOME, min_size=1, max_size=4))
def test_every_form_is_equivalent_and_they_are_all_there(text):
    try:
        forms = canonical_forms(text, 2_000)
    except RequestError:
        return

    assert len(forms) == len({*forms})
    assert all(equivalent(form, text) for form in forms)
    assert {text, normalize("NFC", text), normalize("NFD", text)} <= {*forms}


@given(st.data(), st.text(SOME, min_size=1, max_size=3))
def test_what_is_equivalent_is_a_form(data, text):
    written = "".join(
        normalize(data.draw(st.sampled_from(["NFC", "NFD"])), piece)
        for piece in data.draw(st.permutations([*normalize("NFD", text)]))
    )
    if equivalent(written, text):
        assert written in canonical_forms(text, 10_000)


def test_partly_composed_marks_singletons_and_excluded_characters_are_forms():
    assert {*canonical_forms("ế", 99)} == {
        *("ế", "ê\u0301", "e\u0302\u0301", "ê\u0341", "e\u0302\u0341")  # U+0341 is U+0301
    }
    assert {*canonical_forms("\u212b", 99)} == {"\u212b", "Å", "A\u030a"}
    assert {*canonical_forms("\u0958", 99)} == {"\u0958", "\u0915\u093c"}
    assert {*canonical_forms("한", 99)} == {"한", "하\u11ab", "\u1112\u1161\u11ab"}
    assert {*canonical_forms("\u0ccb", 99)} == {  # letters that are no marks
        *("\u0ccb", "\u0cca\u0cd5", "\u0cc6\u0cc2\u0cd5")
    }
    assert {*canonical_forms("\u0f69", 99)} == {"\u0f69", "\u0f40\u0fb5"}
    assert {*canonical_forms("q\u0307\u0323", 99)} == {
        "q" + "".join(marks) for marks in permutations("\u0307\u0323")
    }


def test_too_many_forms_are_refused():
    with pytest.raises(RequestError, match="99 canonically equivalent"):
        canonical_forms("é" * 7, 99)


def test_all_words_together_have_few_forms():
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)])
    texts = tuple(f"{number:x}ê" for number in range(1536))  # two forms each

    assert len(in_all_forms(vocabulary, texts)) == 3072
    with pytest.raises(RequestError, match="which are at most 3072, got more with 'y'"):
        in_all_forms(vocabulary, (*texts, "y"))


def test_forms_that_a_vocabulary_cannot_write_count_like_the_others():
    vocabulary = type("Plain", (), {"exact": SimpleNamespace(alphabet=frozenset(range(128)))})()
    texts = tuple("é" * 6 + end for end in "abcd")  # 729 forms of 13 to 19 bytes each

    assert in_all_forms(vocabulary, texts[:1]) == texts[:1]
    with pytest.raises(RequestError, match="32768 bytes of UTF-8 in all of their"):
        in_all_forms(vocabulary, texts)
