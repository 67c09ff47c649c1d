"""Real small tokenizers, trained on the spot."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

__all__ = ["END", "byte_level"]

#: The end of sequence, a special token with id 0.
END = "<|end|>"


def byte_level(corpus: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Return a byte-level BPE as most models have it.

    Args:
        corpus: Texts to train on.
        vocab_size: Number of tokens, 257 of which are the bytes and the end of sequence.
    """
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    made.train_from_iterator(corpus, trainer)
    return made
