"""Texts instead of token ids, on a real server."""

import re

import pytest
import regex

from sglang_lp.client import attach
from support.asking import body
from support.servers import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

PROMPT = [5, 6, 7, 296, 454]


def said(server, attachment=None):
    request = body(PROMPT, max_new_tokens=60)
    reply = server.post("/generate", attachment.generate_body(request) if attachment else request)
    assert reply.status == 200, reply.body
    return reply.body["text"]


def test_no_answer_holds_a_banned_word_whichever_tokens_would_spell_it(server):
    text, words = said(server), []
    for _ in range(6):  # what the model says instead is banned as well
        words += re.findall("[ -~]{4}", text)[1:9:3]
        text = said(server, attach("BadWordsLogitProcessor", words=words))
        assert not [word for word in words if word in text]
    assert len({*words}) > 9


def test_no_answer_holds_a_letter_of_a_banned_script(server):
    assert re.search("[a-z]", said(server))

    text = said(server, attach("ScriptLogitProcessor", scripts=["Latin"], mode="ban"))

    assert text
    assert not regex.search(r"\p{Script=Latin}", text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "length >= 1"),
        (["a" * 10_000], "length <= 256"),
        (["w" * 200] * 200, "at most 32768 bytes"),
    ],
)
def test_words_that_cannot_be_banned_are_refused(server, words, message):
    request = body(PROMPT)
    request["custom_logit_processor"] = "BadWordsLogitProcessor"
    request["sampling_params"]["custom_params"] = {"words": words}

    reply = server.post("/generate", request)

    assert reply.status == 400
    assert "words" in str(reply.body)
    assert message in str(reply.body)
