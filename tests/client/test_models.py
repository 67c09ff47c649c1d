"""Models that a server describes."""

import pytest
import tokenizers

from sglang_lp.client.models import read_model
from sglang_lp.errors import RequestError

TOLD = {"vocab_size": None, "eos_token_ids": [], "tokenizer": {}}


class PanicException(BaseException):
    """As the library's panics are: no ``Exception``."""


class Tokenizer:
    """A class of the library that cannot read what it gets."""

    error: BaseException

    @classmethod
    def from_str(cls, _written):
        raise cls.error


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(
    ("raised", "caught"),
    [(PanicException("index out of bounds"), RequestError), (KeyboardInterrupt(), None)],
)
def test_a_tokenizer_that_makes_its_library_panic_is_refused(raised, caught, monkeypatch):
    monkeypatch.setattr(tokenizers, "Tokenizer", Tokenizer)
    monkeypatch.setattr(Tokenizer, "error", raised, raising=False)

    with pytest.raises(caught or type(raised)):
        read_model(TOLD)
