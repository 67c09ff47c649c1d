"""Answers that were asked for once are kept: a run that was stopped goes on where it was.

A line of the file is one answer, under the digest of everything that was asked. What is asked in
another way is asked again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import orjson

__all__ = ["Answer", "Ask", "Kept"]


@dataclass(frozen=True)
class Answer:
    """An answer, and how it ended.

    Attributes:
        text: Of the answer.
        output_ids: Its tokens.
        finished: Whether the model ended it, and not ``max_new_tokens``.
        nats: Of each token by the model itself, without any processor; if that was asked for.
        error: Why there is no answer.
    """

    text: str = ""
    output_ids: tuple[int, ...] = ()
    finished: bool = False
    nats: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        section: Of the page.
        arm: What is compared.
        prompt: Number of the prompt.
        server: Name of the server that is asked.
        body: Of ``POST /generate``.
        judged: Whether the model itself judges the answer.
        alone: Whether no other request may be in its batch.
    """

    section: str
    arm: str
    prompt: int
    server: str
    body: Mapping[str, Any]
    judged: bool = False
    alone: bool = False

    @property
    def digest(self) -> str:
        """The key under which its answer is kept."""
        what = [self.server, self.body, self.judged]
        return hashlib.sha256(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Kept:
    """The answers in a file; safe from several threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()
        self._answers = dict(self._read())

    def _read(self) -> Iterator[tuple[str, Answer]]:
        if not self._file.exists():
            return
        for line in self._file.read_bytes().splitlines():
            try:
                said = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # the line at which a run was killed
            answer = said["answer"]
            answer["output_ids"], answer["nats"] = map(
                tuple, (answer["output_ids"], answer["nats"])
            )
            yield said["digest"], Answer(**answer)

    def get(self, ask: Ask) -> Answer | None:
        """Return the answer to a request, if it came already."""
        return self._answers.get(ask.digest)

    def put(self, ask: Ask, answer: Answer) -> None:
        """Keep an answer."""
        said = {"section": ask.section, "arm": ask.arm, "prompt": ask.prompt}
        line = orjson.dumps({"digest": ask.digest, **said, "answer": answer})
        with self._lock:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(line + b"\n")
            self._answers[ask.digest] = answer

    def whole(self, asks: Sequence[Ask]) -> dict[str, dict[int, Answer]]:
        """Return the answers of each arm, to those prompts that every arm answered."""
        arms: dict[str, dict[int, Answer]] = {}
        for ask in asks:
            of = arms.setdefault(ask.arm, {})
            if (answer := self.get(ask)) is not None:
                of[ask.prompt] = answer
        common = set.intersection(*map(set, arms.values())) if arms else set()
        return {arm: {at: of[at] for at in sorted(common)} for arm, of in arms.items()}
