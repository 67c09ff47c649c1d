"""Model for the adapter tests, run by Transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList

from support.models import tiny_model


class Transformers:
    """The tiny model and its tokenizer."""

    def __init__(self, directory):
        self.model = AutoModelForCausalLM.from_pretrained(directory)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)

    def logits(self, histories):
        """Return the logits of the next token, shape ``(requests, vocab)``."""
        with torch.no_grad():
            rows = [self.model(torch.tensor([tokens])).logits[0, -1] for tokens in histories]
        return torch.stack(rows)

    def generate(self, processor, prompt, steps):
        """Return the answer of ``generate`` with a processor."""
        with torch.no_grad():
            ids = self.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                logits_processor=LogitsProcessorList([processor]),
                max_new_tokens=steps,
                do_sample=False,
                pad_token_id=tiny_model.EOS,
            )
        return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def transformers(tmp_path_factory):
    return Transformers(tiny_model.make(tmp_path_factory.mktemp("tiny-model")))
