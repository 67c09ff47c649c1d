"""A scene of the demo claims nothing that its run did not show; no engine is needed for that."""

from __future__ import annotations

import threading
from itertools import chain, count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from demo import scenes
from demo.model import QUESTIONS, SpecialTokens

#: Words that `scenes.hostile` looks for.
HELP = "allows hex operator token_ids 10000000"
Answer = tuple[int, dict[str, Any]]
RIGHT: Answer = (200, {"output_ids": [1]})
WRONG: Answer = (200, {"output_ids": [2]})
BROKEN: Answer = (500, {})
EMPTY: Answer = (200, {})


def played(under_fire: list[Answer], marker: Path) -> scenes.Scene:
    """Play the attacks against a server whose good answers, once it is attacked, are these.

    The last of them is repeated; the first attack is answered when all of them were sent.
    """
    good = chain(repeat(RIGHT, len(QUESTIONS)), under_fire, repeat(under_fire[-1]))
    served, all_served = count(1), threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200)
        if b"thinking_budget" in request.content:
            if next(served) == len(QUESTIONS) + len(under_fire):
                all_served.set()
            status, content = next(good)
            return httpx.Response(status, json=content)
        assert all_served.wait(10)
        return httpx.Response(400, json={"error": {"message": HELP}})

    ids = SpecialTokens(
        think=1, end_think=2, start_turn=3, end_turn=4, cell=5, end_cell=6, newline=7
    )
    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://demo") as http:
        return scenes.attacks(http, scenes.Model(None, ids), marker)


def test_good_answers_under_attack_are_claimed(tmp_path: Path) -> None:
    scene = played([RIGHT, RIGHT], tmp_path / "marker")

    assert scene.holds
    assert len(scene.rows) == 6


@pytest.mark.parametrize("last", [WRONG, BROKEN, EMPTY], ids=["wrong", "error", "empty"])
def test_one_good_request_that_fails_under_attack_ends_the_claim(
    last: Answer, tmp_path: Path
) -> None:
    scene = played([RIGHT, last], tmp_path / "marker")

    [claim] = [claim for claim, seen in scene.proofs if not seen]
    assert "good requests meanwhile" in claim


def drafted(other: list[int]) -> scenes.Scene:
    """Play the drafts against a server that answers the forced request otherwise than expected."""

    def answer(request: httpx.Request) -> httpx.Response:
        output_ids = other if b"eos_token_ids" in request.content else [1, 2, 3, 4]
        meta = {"completion_tokens": 4, "spec_verify_ct": 2}
        return httpx.Response(200, json={"output_ids": output_ids, "text": "", "meta_info": meta})

    ids = SpecialTokens(
        think=1, end_think=2, start_turn=3, end_turn=4, cell=5, end_cell=6, newline=7
    )
    model = scenes.Model(ByTheLetter(), ids)
    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://demo") as http:
        return scenes.drafts(http, model, [[1, 2, 3, 4]] * len(scenes.steered(model)))


class ByTheLetter:
    """As much of a tokenizer as is asked for."""

    def encode(self, text: str, **_: Any) -> Any:
        return SimpleNamespace(ids=[ord(letter) for letter in text])


def test_the_same_answers_with_drafts_are_claimed() -> None:
    assert drafted([1, 2, 3, 4]).holds


def test_another_answer_with_drafts_ends_its_claim() -> None:
    [claim] = [claim for claim, seen in drafted([1, 2, 3, 5]).proofs if not seen]

    assert claim.startswith("forced: ")
