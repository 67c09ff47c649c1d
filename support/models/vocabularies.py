"""Real small tokenizers and vocabularies, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

__all__ = ["END", "byte_fallback", "byte_level", "one_token_a_byte", "tokens_of"]

#: The end of sequence, a special token with id 0.
END = "<|end|>"


def one_token_a_byte(*added: str, special: bool = True) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer without merges: ids 0 to 255 are the bytes.

    Args:
        added: Tokens with the ids from 256 on.
        special: Whether they are special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens(
        [tokenizers.AddedToken(one, special=special, normalized=False) for one in added]
    )
    return made


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


def byte_fallback(pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """Return a BPE as SentencePiece makes them: what no piece spells is written in byte tokens.

    Args:
        pieces: Tokens besides those of the bytes and the end of sequence, ``▁`` for a space. Of
            the longer ones those are written that a piece and one more character make.
    """
    names = [END, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [(piece[:-1], piece[-1]) for piece in pieces if len(piece) > 1]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    made.add_special_tokens([END])
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def tokens_of(some: Random, letters: Sequence[str], count: int, longest: int) -> list[bytes]:
    """Return tokens that spell every text of some letters, cut at any byte.

    Args:
        some: Draws the tokens.
        letters: The letters.
        count: Number of tokens, in addition to one for each byte of the letters.
        longest: Most letters of such a token.
    """
    tokens = [bytes([byte]) for byte in {*"".join(letters).encode()}]
    for _ in range(count):
        text = "".join(some.choices(letters, k=some.randint(1, longest))).encode()
        start, stop = sorted(some.choices(range(len(text) + 1), k=2))
        tokens.append(text[start:stop])
    some.shuffle(tokens)
    return tokens
