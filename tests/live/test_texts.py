"""Texts instead of token ids, on a real server."""

import os
import re
import subprocess
from pathlib import Path

import orjson
import pytest
import regex

from sglang_lp.client import attach
from support.servers.asking import body
from support.servers.configurations import on_servers

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


def test_a_word_of_great_weight_comes_as_often_as_it_may_be_pushed(server):
    word = " Zürich!"  # not a word that the model writes
    assert word not in said(server)

    for times in (1, 3):
        likely = attach("BiasWordsLogitProcessor", words=[word], weights=[900], max_times=times)
        assert said(server, likely).count(word) == times


def test_the_answer_is_one_of_the_choices_and_ends_with_it(server):
    choices = ["yes, of course", "no", "not at all 😀"]
    reply = server.post(
        "/generate", attach("ChoiceLogitProcessor", choices=choices).generate_body(body(PROMPT))
    )

    assert reply.status == 200, reply.body
    assert reply.body["text"] in choices
    assert reply.finish_reason["type"] == "stop"


def test_a_phrase_follows_a_trigger_however_it_was_spelled(server):
    trigger = re.findall("[ -~]{3}", said(server))[2]
    text = said(server, attach("TriggerPhraseLogitProcessor", trigger=trigger, phrase="<Note 😀>"))

    assert re.search(f"{re.escape(trigger)}.{{0,9}}<Note 😀>", text, re.DOTALL)


def test_end_tokens_that_are_left_out_are_those_of_the_served_model(server):
    ending = attach("ChoiceLogitProcessor", choices=["a", "aa", "aaa"])
    reply = server.post("/generate", ending.generate_body(body(PROMPT)))
    end = reply.output_ids[-1]

    for processor in (
        attach("MinLengthLogitProcessor", min_tokens=60),
        attach("TriggerPhraseLogitProcessor", phrase="<Note 😀>"),
    ):
        request = processor.generate_body(
            body(PROMPT, max_new_tokens=50, logit_bias={str(end): 50.0})
        )
        found = server.post("/generate", request)
        assert found.status == 200, found.body
        if processor.custom_params.get("phrase"):
            assert found.body["text"].startswith("<Note 😀>")
        else:
            assert len(found.output_ids) == 50


def test_a_phase_that_the_server_cannot_know_is_refused_by_name(server):
    shortest = attach("MinLengthLogitProcessor", min_tokens=3, where="answer")

    reply = server.post("/generate", shortest.generate_body(body(PROMPT)))

    assert reply.status == 400
    assert "where of MinLengthLogitProcessor" in str(reply.body)
    assert "--reasoning-parser" in str(reply.body)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "a text of 1 or more characters"),
        (["a" * 10_000], "a text of at most 256 characters"),
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


README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_request_of_the_readme_can_be_pasted(server):
    (request,) = re.findall(r"^```sh\n(curl .+?)^```", README, re.DOTALL | re.MULTILINE)
    pasted = request.replace("http://127.0.0.1:30000", server.url)

    done = subprocess.run(
        ["sh", "-c", pasted],
        capture_output=True,
        check=True,
        env=os.environ | {"no_proxy": "*"},
    )

    answer = orjson.loads(done.stdout)
    assert answer["meta_info"]["sglang_lp"]["processors"] == ["BadWordsLogitProcessor"]
    assert not [word for word in ("5", "five") if word in answer["text"]]
