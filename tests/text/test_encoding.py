"""Messages about tokens show their texts."""

from types import SimpleNamespace

import pytest

from sglang_lp.text.encoding import with_texts
from support.models.vocabularies import one_token_a_byte

TOKENIZER = one_token_a_byte("<|end|>")
LETTER, HALF, END = *TOKENIZER.encode("a").ids, TOKENIZER.encode("ä").ids[0], 256
CLASH = f"tokens {LETTER} and {END} are both forced"


@pytest.mark.parametrize("wrapped", [False, True])
def test_each_id_has_its_text(wrapped):
    # As transformers has it, or as it is.
    tokenizer = SimpleNamespace(decode=TOKENIZER.decode) if wrapped else TOKENIZER

    said = f"tokens {LETTER} ('a') and {END} ('<|end|>') are both forced"
    assert with_texts(CLASH, tokenizer) == said


def test_an_id_without_a_text_stays_as_it_is():
    assert with_texts(CLASH, None) == CLASH
    for token_id in (99_999, HALF):
        said = f"token {token_id} is forced"
        assert with_texts(said, TOKENIZER) == said
