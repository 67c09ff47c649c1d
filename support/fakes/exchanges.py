"""Answers to trace, spelt with the tokenizer of the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from sglang_lp.client import Attachment, attach
from sglang_lp.served_model import ServedModel
from sglang_lp.trace import Exchange, Trace, trace_answer

__all__ = ["budget", "chained", "ids", "spelled", "tokenizer", "traced"]

WORDS = "one two three four five six seven sheep left many farmer and on the a b answer is how"


@cache
def tokenizer() -> Tokenizer:
    """Every byte, some words, and the delimiters of a thinking block."""
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    merges = []
    for word in WORDS.split():
        left = "\u0120"
        for letter in word:
            if left + letter not in vocabulary:
                vocabulary[left + letter] = len(vocabulary)
                merges.append((left, letter))
            left += letter
    made = Tokenizer(BPE(vocabulary, merges))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    for added in ("<think>", "</think>", "yes", "no"):
        made.add_tokens([AddedToken(added, special=False)])
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    return made


def ids(text: str) -> list[int]:
    """Return the token ids of a text."""
    found: list[int] = tokenizer().encode(text).ids
    return found


def budget(tokens: int, **params: Any) -> Attachment:
    """Return a thinking budget for this tokenizer."""
    (start,), (end,), (newline,) = ids("<think>"), ids("</think>"), ids("\n")
    return attach(
        "ThinkingBudgetLogitProcessor",
        thinking_budget=tokens,
        thinking_start_token_id=start,
        thinking_end_token_id=end,
        new_line_token_id=newline,
        **params,
    )


def traced(attachment: Attachment, output: str, prompt: str = " how many") -> Trace:
    """Trace an answer by its text."""
    return attachment.trace({"output_ids": ids(output)}, prompt, tokenizer=tokenizer())


def chained() -> Trace:
    """A chain of a thinking budget of 6 and a word ban."""
    both = attach([budget(6), attach("BadWordsLogitProcessor", words=["is a"])])
    return traced(both, "<think> one two three four five seven\n</think> the answer is five<|end|>")


def spelled(text: str, attachment: Attachment | None = None) -> Trace:
    """An answer with that text."""
    if attachment is None:
        return trace_answer(None, Exchange(None, {}, [], ids(text)), ServedModel(tokenizer()))
    return traced(attachment, text)
