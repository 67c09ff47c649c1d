"""Processors by their definitions: slow, in plain loops, without the toolkit."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def ngram_bans(
    tokens: Sequence[int], ngram_size: int, window_size: int, allowed: Collection[int] = ()
) -> set[int]:
    """Return the tokens that would repeat an n-gram of the window.

    Args:
        tokens: Prompt and output so far, or only the output.
        ngram_size: Tokens of an n-gram.
        window_size: Number of last tokens that are searched.
        allowed: Tokens that may complete an n-gram again.
    """
    if len(tokens) < ngram_size - 1:
        return set()
    window = tokens[-window_size:]
    newest = tokens[len(tokens) - ngram_size + 1 :]
    return {
        window[at + ngram_size - 1]
        for at in range(len(window) - ngram_size + 1)
        if window[at : at + ngram_size - 1] == newest
    } - {*allowed}


def thinking_force(
    prompt: Sequence[int],
    output: Sequence[int],
    thinking_budget: int,
    delimiters: tuple[int, int, int],
) -> int | None:
    """Return the token that a thinking budget forces next, or ``None``.

    Args:
        prompt: Its tokens.
        output: The tokens generated so far.
        thinking_budget: Tokens that a block may have.
        delimiters: The token that opens a block, the one that closes it, and the newline that is
            forced before it.
    """
    _, end, newline = delimiters
    inside = thought(prompt, output, delimiters)
    if inside is None or inside < thinking_budget:
        return None
    return end if output and output[-1] == newline else newline


def thought(
    prompt: Sequence[int], output: Sequence[int], delimiters: tuple[int, int, int]
) -> int | None:
    """Return how many tokens the open block has, ``None`` if none is open; as above."""
    start, end, _ = delimiters
    opened = None
    tokens = [*prompt, *output]
    for at, token in enumerate(tokens):
        if token == start and (opened is None or at < len(prompt)):
            opened = at + 1
        elif token == end:
            opened = None
    return None if opened is None else len(tokens) - opened


def bad_word_bans(words: Sequence[Sequence[int]], output: Sequence[int]) -> set[int]:
    """Return the tokens that would complete one of the words.

    Args:
        words: Token ids of each.
        output: The tokens generated so far.
    """
    return {
        word[-1]
        for word in words
        if [*output[max(0, len(output) - len(word) + 1) :]] == [*word[:-1]]
    }


def scheduled_bias(
    position: int, bias: float | None, final_bias: float | None, start: int, end: int | None
) -> float:
    """Return the bias on the tokens of a schedule.

    Args:
        position: Number of tokens generated so far.
        bias: At the first position; ``None`` for a ban.
        final_bias: At the last position; ``None`` for one that stays the same.
        start: First position.
        end: The position after the last biased token; ``None`` for no end.
    """
    if position < start or (end is not None and position >= end):
        return 0.0
    if bias is None:
        return float("-inf")
    if final_bias is None or end is None or end - start == 1:
        return bias
    return bias + (final_bias - bias) * (position - start) / (end - 1 - start)
