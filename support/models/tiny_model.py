"""A random GPT-2 with a byte-level tokenizer: small, quick, and its greedy text varies.

Token ids: 0 begins and 1 ends a text, 2 to 257 are the bytes, ``i`` from 258 on reads `` wi``. The
weights are drawn wide, so that greedy decoding wanders among some forty tokens instead of
repeating one; ``FREQUENT`` ones come every few steps, which makes them good tokens to steer by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BOS, EOS = 0, 1
VOCAB_SIZE = 1024
#: The first id that is a word.
FIRST_WORD = 258
#: Ids that the greedy model often produces whatever the prompt, the most frequent first.
FREQUENT = (720, 386, 325, 164, 870)


def make(directory: Path) -> Path:
    """Write the checkpoint into ``directory`` and return it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=4096,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    # Not left to Transformers, whose versions draw differently.
    generator = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            narrow = name.endswith("c_proj.weight")
            torch.nn.init.normal_(weight, std=0.15 if narrow else 0.3, generator=generator)
    model.save_pretrained(directory)
    tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_bytes(
        orjson.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
            }
        )
    )
    return directory


@cache
def tokenizer() -> Tokenizer:
    """Return the model's tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"Ġw{i}" for i in range(len(words), VOCAB_SIZE)]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(words[:2])
    return made


@cache
def beginnings() -> Mapping[int, int]:
    """Return for each token that begins a character of several bytes how many it lacks then."""
    numbers = [*range(0x80, 0x800, 0x20), *range(0x800, 0xD800, 0x400), 0xE000, 0xF000]
    numbers += range(0x10000, 0x110000, 0x10000)
    spelled = (tokenizer().encode(chr(number)).ids for number in numbers)
    return {first: len(rest) for first, *rest in spelled}


def word(token_id: int) -> str:
    """Return the text of a token from ``FIRST_WORD`` on."""
    return f" w{token_id}"
