"""The page of ``sglang-lp try`` on a real server: both answers, and a trace that fits them."""

import re

import orjson
import pytest

from sglang_lp.cli.trying.target import Target, Wish
from sglang_lp.policy import Policy
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]


@pytest.mark.parametrize("chat", [True, False])
def test_a_prompt_is_answered_with_and_without_the_processor(server, chat):
    target = Target.find(server.url, Policy())
    words = "Tried here."
    params = {"text": words}
    done = target.ask(Wish("ForcedSequenceLogitProcessor", params, "Hello", chat, 24, 0.0))
    edited, plain = done["answers"]

    assert edited["error"] == plain["error"] == done["note"] == ""
    assert words in edited["text"]
    assert words not in plain["text"]
    assert "ForcedSequenceLogitProcessor" in edited["about"]
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', done["trace"])
    traced, beside = orjson.loads(data)["panes"]
    assert traced["problems"] == beside["problems"] == {}
    assert traced["notes"] == beside["notes"] == []
    assert traced["happened"]


def test_a_refusal_of_the_server_is_shown_in_its_words(server):
    target = Target.find(server.url, Policy())
    wish = Wish("BadWordsLogitProcessor", {"wrods": ["a"]}, "Hello", chat=False, max_tokens=4,
                temperature=0.0)  # fmt: skip
    edited, plain = target.ask(wish)["answers"]

    assert edited["error"].startswith("HTTP 400: ")
    assert "wrods" in edited["error"]
    assert plain["error"] == ""


def test_every_processor_that_the_server_offers_has_a_form(server):
    offered = Target.find(server.url, Policy()).offer()

    named = {one["name"]: one for one in offered["processors"]}
    assert named["BadWordsLogitProcessor"]["fields"]
    assert named["BadWordsLogitProcessor"]["about"]
    assert offered["model"]
