"""Costs of texts: the vocabulary once, a request's strings once, and each step of a row.

Run it as ``make bench PART=text``. It stores the results in ``benchmarks/results/text.json`` and
renews ``docs/performance.md``.
The vocabulary has 200,000 made-up tokens: words with and without a space, characters of three
bytes and pieces of them. The output is random tokens, half of the time one that goes on with a
banned word, which is far more often than a model does. Times are of the thread's processor, so
that other work on the machine does not count.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp.text.banned import BannedTexts
from sglang_lp.text.choosing import TextChoices
from sglang_lp.text.vocabulary import Vocabulary
from sglang_lp.text.whole_words import WholeWords, prepare

__all__ = ["PART", "some_tokens"]

SEED = 20_261_122
VOCAB = 200_000
WORDS = 1_000
#: Characters of the longest text that may be forced.
LONGEST = 4_096
STEPS = 20_000
ROUNDS = 5

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_FIRST, _LAST = 0x4E00, 0x9FFF

Banned = BannedTexts | WholeWords


def some_word(some: random.Random) -> str:
    """Return letters, the frequent ones more often."""
    weights = range(len(_LETTERS), 0, -1)
    return "".join(some.choices(_LETTERS, weights=weights, k=some.randint(2, 8)))


def some_tokens(some: random.Random, count: int = VOCAB, *, whole: bool = False) -> list[bytes]:
    """Return a vocabulary with every byte.

    Args:
        some: Draws it.
        count: Its size.
        whole: Whether every token but those of a byte is whole characters.
    """
    tokens = dict.fromkeys(bytes([byte]) for byte in range(256))
    while len(tokens) < count:
        if some.random() < 0.7:
            token = (some.choice(["", " "]) + some_word(some)).encode()
        else:
            text = "".join(chr(some.randrange(_FIRST, _LAST)) for _ in range(some.randint(1, 3)))
            token = text.encode()
            if not whole and some.random() < 0.3:
                start = some.randrange(3)
                token = token[start : start + some.randint(1, 5)]
        tokens[token] = None
    return [*tokens]


def milliseconds(make: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a function took, and its result."""
    gc.collect()
    start = time.thread_time()
    made = make()
    return 1e3 * (time.thread_time() - start), made


def step_costs(some: random.Random, banned: Banned, tokens: list[bytes]) -> list[float]:
    """Return the microseconds of each step of one row."""
    costs, end = [], banned.start
    for _ in range(STEPS):
        token_id = some.randrange(len(tokens))
        ahead = [some.randrange(len(tokens)) for _ in range(3)]
        if some.random() < 0.5:
            token_id = max(ahead, key=lambda token_id: len(banned.step(end, token_id)))
        start = time.thread_time()
        end = banned.step(end, token_id)
        banned.completing(end)
        if isinstance(banned, WholeWords):
            banned.after_word(end, len(tokens))
        costs.append(1e6 * (time.thread_time() - start))
    return costs


def measure() -> dict[str, Any]:
    """Return all figures."""
    some = random.Random(SEED)
    tokens = some_tokens(some)
    vocabulary = Vocabulary(tokens)
    results: dict[str, Any] = {
        "machine": machine(),
        "vocabulary": VOCAB,
        "words": WORDS,
        "vocabulary_ms": milliseconds(vocabulary.prepare)[0],
        "letters_ms": milliseconds(lambda: prepare(vocabulary))[0],
        "rows": [],
    }
    words = tuple(some_word(some) + some_word(some) for _ in range(WORDS))
    kinds: dict[str, Callable[[], Any]] = {
        "words": lambda: BannedTexts(vocabulary, words, ignore_case=False),
        "words, ignore_case": lambda: BannedTexts(vocabulary, words, ignore_case=True),
        "words, whole_words": lambda: WholeWords(vocabulary, words, ignore_case=False),
        "words, both": lambda: WholeWords(vocabulary, words, ignore_case=True),
    }
    for name, make in kinds.items():
        compiled = [milliseconds(make) for _ in range(ROUNDS)]
        costs = step_costs(some, compiled[0][1], tokens)
        results["rows"].append(
            {
                "parameters": name,
                "compile_ms": statistics.median(took for took, _ in compiled),
                "step_us": statistics.median(costs),
                "step_p99_us": statistics.quantiles(costs, n=100)[-1],
                "step_p999_us": statistics.quantiles(costs, n=1000)[-1],
            }
        )
    few = words[:600]
    results["choices_ms"] = statistics.median(
        milliseconds(lambda: TextChoices(vocabulary, few))[0] for _ in range(ROUNDS)
    )
    forced = "".join(chr(some.randrange(_FIRST, _LAST)) for _ in range(LONGEST)).encode()
    results["forced_ms"] = statistics.median(
        milliseconds(lambda: vocabulary.spell(forced))[0] for _ in range(ROUNDS)
    )
    return results


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    made = f"{results['vocabulary_ms'] / 1e3:.2f} s"
    letters = f"{results['letters_ms'] / 1e3:.2f} s"
    lines = [
        "",
        f"A vocabulary of {results['vocabulary']:,} tokens is made in {made}, once in a process.",
        f"What `whole_words` needs takes {letters} more.",
        f"600 choices are compiled in {results['choices_ms']:.1f} ms.",
        f"A forced text of {LONGEST:,} characters is spelled in {results['forced_ms']:.1f} ms.",
        "",
    ]
    head = (
        *(f"{results['words']:,} words", "compiled in", "a step", "99 % under", "99.9 % under"),
    )
    rows = (
        (
            *(row["parameters"], f"{row['compile_ms']:.1f} ms", f"{row['step_us']:.1f} µs"),
            *(f"{row[step]:.0f} µs" for step in ("step_p99_us", "step_p999_us")),
        )
        for row in results["rows"]
    )
    return "\n".join([*lines, *table(head, rows), ""])


PART = Part("text", "performance.md", page_block)


def main() -> None:
    """Measure, store and renew the page."""
    results = measure()
    PART.store(results)
    print(page_block(results))


if __name__ == "__main__":
    main()
