"""The scenes that are played on a model that speaks, over HTTP."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from demo.show import Scene, cut
from demo.speaking import DIRECTORY, chat
from sglang_lp.client import attach, attach_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx

    from sglang_lp.client import Attachment

__all__ = ["SCENES"]

CAPITAL = "What is the capital of France?"
WORDS = ("Paris", "France")
CHOICES = ("yes", "no", "I do not know")
POEM = "Write a poem about rain."
NGRAM, WINDOW = 10, 256
START = "Arr, matey! "


def _asked(question: str, tokens: int) -> dict[str, Any]:
    return {
        "text": chat(question),
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
    }


def _play(
    http: httpx.Client, scene: Scene, request: dict[str, Any], ways: Sequence[Attachment | None]
) -> list[Any]:
    """Send a request in one batch with several processors, the first time without one."""
    count = len(ways)
    batch = {
        "text": [request["text"]] * count,
        "sampling_params": [request["sampling_params"]] * count,
    }
    body = attach_each(ways).generate_body(batch)
    answers = http.post("/generate", json=body).raise_for_status().json()
    scene.traces(ways[1].generate_body(request) if ways[1] else request, answers[1])
    scene.traces(request, answers[0])
    return [answer["text"] for answer in answers]


def words(http: httpx.Client) -> Scene:
    """A banned word, and the words that replace it."""
    scene = Scene("A banned word never comes, whichever tokens would spell it", model=DIRECTORY)
    bans = [attach("BadWordsLogitProcessor", words=[word], ignore_case=True) for word in WORDS]
    free, *banned = _play(http, scene, _asked(CAPITAL, 24), [None, *bans])
    scene.row(CAPITAL, "none", free)
    for word, text in zip(WORDS, banned, strict=True):
        scene.row(CAPITAL, f"banned: {word}", text)
        scene.proves(
            f"no {word!r}, which the model writes without a ban",
            seen=word in free and word.lower() not in text.lower(),
        )
    return scene


def choices(http: httpx.Client) -> Scene:
    """One of several texts, by the model's own probabilities."""
    scene = Scene("A choice: the answer is one of several texts", model=DIRECTORY)
    question = "Is the sun a star?"
    choice = attach("ChoiceLogitProcessor", choices=[*CHOICES])
    free, chosen = _play(http, scene, _asked(question, 32), [None, choice])
    scene.row(question, "none", cut(free, 120))
    scene.row(question, f"choices: {', '.join(CHOICES)}", chosen)
    scene.proves(
        "the answer is a choice; without the processor it is not",
        seen=chosen in CHOICES and free not in CHOICES,
    )
    return scene


def scripts(http: httpx.Client) -> Scene:
    """An answer without the letters of one script."""
    scene = Scene("Scripts: not one letter of an alphabet", model=DIRECTORY)
    question = "Say something kind in Russian."
    ban = attach("ScriptLogitProcessor", scripts=["Cyrillic"], mode="ban")
    free, text = _play(http, scene, _asked(question, 32), [None, ban])
    scene.row(question, "none", free)
    scene.row(question, "no Cyrillic letter", text)
    counts = [len(re.findall("[\u0400-\u052f]", one)) for one in (free, text)]
    scene.proves(f"without the ban, {counts[0]} Cyrillic letters", seen=counts[0] > 0)
    scene.proves("with the ban an answer without any", seen=not counts[1] and bool(text))
    return scene


def loops(http: httpx.Client) -> Scene:
    """A poem that repeats its lines."""
    scene = Scene("Loops: a poem that repeats its lines, and two ways out", model=DIRECTORY)
    ngram = attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=NGRAM, window_size=WINDOW)
    end = attach(
        "LoopBreakerLogitProcessor",
        min_pattern_size=4,
        max_pattern_size=96,
        min_count=2,
        action="end",
    )
    free, once, ended = _play(http, scene, _asked(POEM, 112), [None, ngram, end])
    scene.row(POEM, "none", cut(free, 240))
    scene.row(POEM, f"no {NGRAM}-gram twice", cut(once, 240))
    scene.row(POEM, "LoopBreaker: the answer ends with its loop", cut(ended, 240))
    most, fewest = _most(free), _most(once)
    scene.proves(f"without a processor a line comes {most} times", seen=most > 1)
    scene.proves(f"with no {NGRAM}-gram twice: {fewest} times at most", seen=fewest < most)
    scene.proves(
        "the loop breaker ends the answer at its loop",
        seen=len(ended) < len(free) and free.startswith(ended),
    )
    return scene


def _most(text: str) -> int:
    """Return how often the commonest line comes."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return max(map(lines.count, lines), default=0)


def forced(http: httpx.Client) -> Scene:
    """The answer begins with a given text, and contains given words."""
    scene = Scene("Forced text: a beginning, and words that must come", model=DIRECTORY)
    begins = attach("ForcedSequenceLogitProcessor", text=START)
    holds = attach("ForcedWordsLogitProcessor", words=[" Eiffel Tower"], within_tokens=32)
    free, started, held = _play(http, scene, _asked(CAPITAL, 32), [None, begins, holds])
    scene.row(CAPITAL, "none", free)
    scene.row(CAPITAL, f"begins with: {START}", started)
    scene.row(CAPITAL, "contains: Eiffel Tower", held)
    scene.proves(
        "the answer begins with the text, and the model continues",
        seen=started.startswith(START) and len(started) > len(START),
    )
    scene.proves(
        "the answer contains the words; without the processor it does not",
        seen="Eiffel Tower" in held and "Eiffel" not in free,
    )
    return scene


SCENES: Sequence[Callable[[httpx.Client], Scene]] = (words, choices, scripts, loops, forced)
