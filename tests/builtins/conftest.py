"""The contracts of processors that take texts, on the vocabulary of a model: ``MODEL=smollm2``."""

from __future__ import annotations

import os

import pytest
from tokenizers import Tokenizer

from demo.speaking import find_speaking_model
from sglang_lp.testing import ProcessorContract

MODEL = os.environ.get("MODEL")


def _takes_texts(about: type | None) -> bool:
    return (
        about is not None
        and issubclass(about, ProcessorContract)
        and isinstance(about.tokenizer, Tokenizer)
    )


def pytest_collection_modifyitems(items):
    if MODEL is not None:
        items[:] = [item for item in items if _takes_texts(getattr(item, "cls", None))]


@pytest.fixture(autouse=True, scope="class")
def real_vocabulary(request):
    """Put the model's tokenizer in the place of the one that was trained on a few words."""
    if MODEL is None or not _takes_texts(request.cls):
        yield
        return
    directory = find_speaking_model()
    if MODEL != "smollm2" or directory is None:
        pytest.fail(f"MODEL: expected smollm2, made by make evidence, got {MODEL}")
    real = Tokenizer.from_file(str(directory / "tokenizer.json"))
    # It does not think; what closes a block is one token where the parameters say so.
    real.add_special_tokens(["<think>", "</think>"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request.cls, "tokenizer", real)
        patch.setattr(request.cls, "vocab_size", real.get_vocab_size())
        yield
