"""Ban the usual tokens of a word, which a model can avoid, and ban the word itself.

$ python examples/banned_words.py
another word               ' foo foolf' [' foo', ' foo', 'l', 'f']
the tokens 'foo', ' foo'   ' foo '      [' ', 'f', 'oo', ' ']
the word 'foo'             ' fof'       [' ', 'f', 'o', 'f']
the whole word 'foo'       ' foofff'    [' foo', 'f', 'f', 'f']
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models

from sglang_lp.builtins import BadWordsLogitProcessor
from sglang_lp.testing import run
from sglang_lp.text.vocabulary import vocabulary_of

PIECES = {"f": 0, "o": 1, "l": 2, "oo": 3, "foo": 4, " foo": 5, " ": 6}
TOKENIZER = Tokenizer(models.BPE(PIECES, [("o", "o"), ("f", "oo"), (" ", "foo")]))
TOKENIZER.decoder = decoders.Fuse()
WANTED = " foo fool"


def model(token_ids: Sequence[int]) -> list[float]:
    """Return logits that write ``WANTED``, in the longest tokens that are not banned."""
    said = vocabulary_of(TOKENIZER).text(token_ids).decode()
    return [
        float(len(piece)) if WANTED.startswith(said + piece) else -float(token_id)
        for piece, token_id in PIECES.items()
    ]


def show(banned: str, **params: Any) -> None:
    """Print the answer under a ban."""
    played = run(
        BadWordsLogitProcessor, params, [], model, steps=4, vocab_size=7, tokenizer=TOKENIZER
    )
    pieces = [TOKENIZER.id_to_token(token_id) for token_id in played.token_ids]
    print(f"{banned:<26} {''.join(pieces)!r:<12} {pieces}")


if __name__ == "__main__":
    show("another word", words=["f l"])
    show("the tokens 'foo', ' foo'", token_ids=[4, 5], lengths=[1, 1])
    show("the word 'foo'", words=["foo"])
    show("the whole word 'foo'", words=["foo"], whole_words=True, eos_token_ids=[6])
