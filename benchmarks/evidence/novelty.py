"""New n-grams in texts that are no loops: ``python -m benchmarks.evidence.novelty``.

Cuts texts of 768 tokens out of the files of this Python environment and of the documentation, and
counts those in which ``min_new_share`` of ``LoopBreakerLogitProcessor`` would see a loop. Lists of
one sentence with a number that counts up show how long an item has to be. ``docs/evidence.md``
shows the tables. It needs SmolLM2's tokenizer, which ``make evidence`` downloads.
"""

from __future__ import annotations

import random
import re
import site
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.evidence.arms import encode
from benchmarks.evidence.judging import share
from benchmarks.pages import renew
from benchmarks.tables import table
from sglang_lp.builtins.repetition.novelty import Novelty
from support.settings import ROOT

NGRAM, WINDOW = 4, 128
SHARES = (0.1, 0.15, 0.2, 0.25, 0.3)
#: Tokens of a text, and fewest of one that counts.
TOKENS, FEWEST = 768, 300
#: Bytes of a file.
SMALLEST, LARGEST = 3_000, 2_000_000
ITEMS = (10, 15, 20, 25, 30, 40)


def _blocks(pattern: str) -> Callable[[str], str]:
    """Return a function that finds the longest block of such lines in a text."""
    found = re.compile(pattern, re.MULTILINE)
    return lambda text: max(found.findall(text), key=len, default="")


def _whole(text: str) -> str:
    return text


#: Endings of files, the part of a file that counts, and how many texts are taken.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[str], str], int]] = {
    "Python": ((".py",), _whole, 300),
    "C++, CUDA and JavaScript": ((".h", ".hpp", ".cu", ".cuh", ".js"), _whole, 300),
    "JSON": ((".json", ".jsonl"), _whole, 200),
    "CSV": ((".csv", ".tsv"), _whole, 100),
    "tables in Markdown": ((".md",), _blocks(r"(?:^\|.*\n){10,}"), 100),
    "lists": ((".md", ".rst", ".txt"), _blocks(r"(?:^\s*(?:[-*]|\d+\.) .*\n){10,}"), 100),
    "other text": ((".md", ".rst", ".txt"), _whole, 200),
}


def _texts(kind: str) -> Iterator[list[int]]:
    """Yield texts of a kind as tokens, in an order that is the same every time."""
    endings, part, count = KINDS[kind]
    draws = random.Random(kind)
    roots = (Path(site.getsitepackages()[0]), ROOT / "docs")
    files = sorted(path for root in roots for path in root.rglob("*") if path.suffix in endings)
    draws.shuffle(files)
    for path in files:
        if count and SMALLEST <= path.stat().st_size <= LARGEST:
            lines = part(path.read_text(errors="ignore")).splitlines(keepends=True)
            begin = draws.randrange(max(1, len(lines) // 2))
            ids = encode("".join(lines[begin:])[: 8 * TOKENS])[:TOKENS]
            if len(ids) >= FEWEST:
                count -= 1
                yield ids


def _lowest(ids: Sequence[int]) -> float:
    """Return the lowest share of new n-grams in any window of a text."""
    novelty, lowest = Novelty(NGRAM, WINDOW), WINDOW
    for read, token_id in enumerate(ids, 1):
        novelty.push(token_id)
        if read >= WINDOW:
            lowest = min(lowest, novelty.new)
    return lowest / (WINDOW - NGRAM + 1)


def _numbered(tokens: int) -> list[int]:
    """Return a list of items of so many tokens in which only the numbers change."""
    words = encode(" of the house that stood on a hill by the sea and looked at ships" * 4)
    found: list[int] = []
    for number in range(10, 10 + 400 // tokens):
        head = encode(f"\n{number}. The story")
        found += [*head, *words[: tokens - len(head)]]
    return found


def main() -> int:
    """Measure, and renew the page."""
    seen: dict[float, list[bool]] = {least: [] for least in SHARES}
    rows = []
    for kind in KINDS:
        lowest = [*map(_lowest, _texts(kind))]
        row = [kind, str(len(lowest))]
        for least in SHARES:
            found = [share_of_new < least for share_of_new in lowest]
            seen[least] += found
            row.append(str(sum(found)))
        rows.append(row)
        print(*row, flush=True)
    total = ["all", str(len(seen[SHARES[0]]))]
    for found in seen.values():
        hits, _, low, high = share(found)
        total.append(f"{hits} ({100 * low:.1f}-{100 * high:.1f} %)")
    heads = [f"below {least:g}" for least in SHARES]
    items = [
        [f"{tokens}", *("yes" if _lowest(_numbered(tokens)) < least else "no" for least in SHARES)]
        for tokens in ITEMS
    ]
    block = [
        *table(["no loops", "texts", *heads], [*rows, total]),
        "",
        *table(["numbered list, tokens of an item: found", *heads], items),
        "",
    ]
    renew("evidence.md", "evidence.novelty", "\n".join(block))
    return 0


if __name__ == "__main__":
    sys.exit(main())
