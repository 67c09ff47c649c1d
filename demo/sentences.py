"""A catalogue for the demo: its items are the sentences that the demo model knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from demo.corpus import LESSONS
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import save

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["sentences", "write_catalogue"]

#: As in the demo's policy.
_FILE = Path(".cache/demo-sentences.cat")
#: Tokens of an item: the first ones of its sentence.
_TOKENS = 3
#: Most bytes of an item's id.
_MAX_ID = 64


def sentences(tokenizer: Tokenizer) -> Mapping[str, tuple[int, ...]]:
    """Return the tokens of each item, by its id: the sentence. Two sentences begin alike."""
    known = [sentence for lesson in LESSONS for sentence in lesson.thought]
    encoded = tokenizer.encode_batch(known, add_special_tokens=False)
    return {
        sentence[:_MAX_ID]: tuple(one.ids[:_TOKENS])
        for sentence, one in zip(known, encoded, strict=True)
    }


def write_catalogue(model: Path) -> None:
    """Write the catalogue for a model's tokenizer to where the demo's policy has it.

    Args:
        model: Directory of the checkpoint.
    """
    items = sentences(Tokenizer.from_file(str(model / "tokenizer.json")))
    ids = np.array([sentence.encode() for sentence in items])
    save(build(np.array([*items.values()], dtype=np.int32), ids), _FILE)
