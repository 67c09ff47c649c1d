"""``sglang-lp trace`` on files."""

from __future__ import annotations

import json

import orjson
import pytest

from sglang_lp import cli
from sglang_lp.client import attach
from sglang_lp.wire.names import TOKENIZER_PATH
from support.fakes.exchanges import budget, ids, tokenizer
from support.servers.listening import Answered, listening


@pytest.fixture
def files(tmp_path):
    """Write a request, a model's directory and two answers: one that fits and one that does not."""
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    request = budget(2).generate_body({"text": " how many"})
    (tmp_path / "request.json").write_text(json.dumps(request))
    for name, text in (("good", "\n</think> two"), ("bad", " three four")):
        answer = {"output_ids": ids(f"<think> one two{text}")}
        (tmp_path / f"{name}.json").write_text(json.dumps(answer))
    return tmp_path


def trace(files, *arguments):
    return cli.main(["trace", "--tokenizer", str(files), *map(str, arguments)])


def test_the_page_is_written_beside_the_answer(files, capsys):
    assert trace(files, files / "request.json", files / "good.json") == 0
    assert capsys.readouterr().out.strip() == f"{files / 'good.json'}.html"
    assert "2 of 2 tokens thought" in (files / "good.json.html").read_text()


def test_a_contradiction_is_an_exit_code(files, capsys):
    assert trace(files, "--format", "text", files / "request.json", files / "bad.json") == 1
    assert "another token was forced here" in capsys.readouterr().out


def test_the_formats_for_terminals_and_tools_go_to_standard_output_or_a_file(files, capsys):
    exchange = files / "request.json", files / "good.json"
    assert trace(files, "--format", "json", *exchange) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["processors"][0]["name"] == "ThinkingBudgetLogitProcessor"
    assert trace(files, "--format", "json", "--output", files / "out", *exchange) == 0
    assert json.loads((files / "out").read_text()) == found


def test_a_second_answer_is_put_beside(files):
    (files / "plain.json").write_text(json.dumps({"text": " how many"}))
    second = "--beside", files / "plain.json", files / "bad.json"
    assert trace(files, files / "request.json", files / "good.json", *second) == 0
    assert "first difference" in (files / "good.json.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json", "good.json"], "cannot be read"),
        (["tokenizer.json", "good.json"], "the prompt are unknown"),
        (["request.json", "stream"], "expected JSON"),
        (["request.json", "good.json", "--choice", "4"], "no answer 4"),
        (
            ["request.json", "good.json", "--output", "missing/page"],
            "--output: 'missing/page' cannot",
        ),
        (
            [
                "--format",
                "text",
                "--beside",
                "request.json",
                "bad.json",
                "request.json",
                "bad.json",
            ],
            "--beside",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(files, arguments, message, capsys, monkeypatch):
    (files / "stream").write_text('data: {"output_ids": [1]}\n\ndata: [DONE]\n')
    monkeypatch.chdir(files)
    assert trace(files, *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_payload_is_looked_up_and_never_unpickled(files, capsys):
    hostile = {"custom_logit_processor": '{"callable": "80049522"}', "input_ids": [1]}
    (files / "hostile.json").write_text(json.dumps(hostile))
    assert trace(files, files / "hostile.json", files / "good.json") == 1
    said = capsys.readouterr().err
    assert "expected a class that this server allows" in said
    assert "give the server's policy with --policy FILE" in said


def test_a_short_name_is_enough(files, capsys):
    request = attach("DRYLogitProcessor").generate_body({"text": " a"})
    request["custom_logit_processor"] = "DRYLogitProcessor"
    (files / "named.json").write_text(json.dumps(request))
    assert trace(files, "--format", "text", files / "named.json", files / "good.json") == 0
    assert "processor  DRYLogitProcessor" in capsys.readouterr().out


TOLD = {"vocab_size": None, "eos_token_ids": [], "tokenizer": orjson.loads(tokenizer().to_str())}
DEEP = b"".join(
    [b'{"vocab_size": 9, "eos_token_ids": [], "tokenizer": {"a":', b"[" * 500, b"]" * 500, b"}}"]
)
SPARSE = {
    **TOLD,
    "tokenizer": {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1 << 31}, "unk_token": "a"},
    },
}


def test_a_server_serves_as_well_as_the_directory_of_its_model(files, capsys):
    def answer(asked):
        assert (asked.method, asked.path) == ("GET", TOKENIZER_PATH)
        return Answered(200, TOLD)

    words = attach("BadWordsLogitProcessor", words=["four five"]).generate_body({"text": " how"})
    (files / "words.json").write_text(json.dumps(words))
    for request, code in (("request.json", 1), ("words.json", 0)):
        exchange = str(files / request), str(files / "bad.json")
        assert trace(files, "--format", "json", *exchange) == code
        from_directory = capsys.readouterr().out
        with listening(answer) as url:
            assert cli.main(["trace", "--url", f"{url}/v1", "--format", "json", *exchange]) == code
        assert capsys.readouterr().out == from_directory


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        (Answered(404, {"detail": "Not Found"}), "older versions of sglang-lp have none"),
        (Answered(400, {"error": {"message": "has no tokenizer"}}), "has no tokenizer"),
        (Answered(302, headers={"Location": "/elsewhere"}), "got HTTP 302"),
        (Answered(200, {"tokenizer": {}}), "expected a tokenizer: Object missing required field"),
        (Answered(200, {**TOLD, "tokenizer": {}}), "cannot be read by this version of tokenizers"),
        (Answered(200, {**TOLD, "vocab_size": 1 << 40}), "expected a tokenizer: Expected `int` <="),
        (Answered(200, {**TOLD, "vocab_size": 0}), "expected a tokenizer: Expected `int` >= 1"),
        (Answered(200, DEEP), "cannot be read by this version of tokenizers"),
        (Answered(200, SPARSE), "of at most 4194304 ids, got id 2147483648"),
    ],
)
def test_a_server_that_tells_no_tokenizer_is_an_error_in_one_line(files, answered, message, capsys):
    with listening(lambda _asked: answered) as url:
        exchange = str(files / "request.json"), str(files / "good.json")
        assert cli.main(["trace", "--url", url, *exchange]) in {1, 2}
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
