"""``sglang-lp catalogue``: from a table to an index, and an index against a model."""

import numpy as np
import orjson
import pytest

from sglang_lp import cli

ROWS = [
    {"sku": "ring", "tokens": [300, 301], "sets": ["fresh"]},
    {"sku": "bell", "tokens": [300, 302], "sets": []},
    {"sku": "bell 2", "tokens": [300, 302], "sets": []},
]


@pytest.fixture
def model(tmp_path):
    """A model of 400 tokens that reads words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["plum", "tree", "<end>", *map(str, range(397))]
    tokenizer = Tokenizer(WordLevel(dict(zip(words, range(400), strict=True))))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"vocab_size": 400, "eos_token_id": 2}
    (tmp_path / "config.json").write_bytes(orjson.dumps(config))
    return tmp_path


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    return path


def build(table, *options):
    index = table.with_suffix(".cat")
    code = cli.main(["catalogue", "build", str(table), "-o", str(index), *options])
    return code, index


def test_an_index_is_built_and_inspected(table, capsys):
    code, index = build(table, "--column", "id=sku")
    built = capsys.readouterr().out

    assert code == 0
    assert cli.main(["catalogue", "inspect", str(index)]) == 0
    assert capsys.readouterr().out == built
    assert "items       2, of up to 2 tokens" in built
    assert "shared      1 ids have the tokens of another id: 'bell' = 'bell 2'" in built
    assert "set         fresh: 1 item\n" in built
    assert "item        ['ring']: tokens [300, 301]" in built


def test_a_program_gets_json(table, capsys):
    _, index = build(table, "--column", "id=sku", "--end", "299")
    capsys.readouterr()

    cli.main(["catalogue", "inspect", "--json", str(index)])

    found = orjson.loads(capsys.readouterr().out)
    assert (found["items"], found["ids"], found["end"], found["levels"]) == (2, 3, 299, 3)
    assert found["examples"][0] == {"ids": ["ring"], "tokens": [300, 301, 299]}
    assert found["file_bytes"] == index.stat().st_size


def test_an_index_is_checked_against_a_model(table, capsys, model):
    _, index = build(table)
    capsys.readouterr()

    assert cli.main(["catalogue", "check", str(index), str(model)]) == 0
    assert "tokens      all below the model's 400" in capsys.readouterr().out

    np.save(table.with_suffix(".npy"), np.array([[1, 999_999]]))
    build(table.with_suffix(".npy"))
    assert cli.main(["catalogue", "check", str(index), str(model)]) == 1
    assert "0 to 399, got 999999; build it for this model" in capsys.readouterr().err


def test_an_item_with_the_end_token_of_the_model_inside_is_refused(table, capsys, model):
    np.save(table.with_suffix(".npy"), np.array([[5, 2, 6], [5, 7, 2]]))
    inside = "got 2 inside of 1 beginnings of items, such as item 0: the answer would end there"

    code, index = build(table.with_suffix(".npy"))
    assert code == 0
    assert cli.main(["catalogue", "check", str(index), str(model)]) == 1
    assert inside in capsys.readouterr().err
    index.unlink()
    assert build(table.with_suffix(".npy"), "--model", str(model)) == (2, index)
    assert inside in capsys.readouterr().err
    assert not index.exists()


def test_items_that_are_texts_are_read_by_the_tokenizer_of_the_model(tmp_path, capsys, model):
    path = tmp_path / "names.jsonl"
    path.write_bytes(b'{"id": 1, "text": "plum"}\n{"id": 2, "text": "plum tree"}\n')

    code, _ = build(path, "--model", str(model))
    assert code == 2
    assert "item 1 is the beginning of item 2" in capsys.readouterr().err

    code, index = build(path, "--model", str(model), "--end", "2")
    assert code == 0
    capsys.readouterr()
    cli.main(["catalogue", "check", str(index), str(model)])
    assert "item        [1]: 'plum <end>'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--column", "sku"], "--column: expected WHAT=NAME, as id=sku, got 'sku'"),
        (["--column", "id=sky"], "got id=sky"),
        (["--end", "-1"], "end: expected a token id"),
        (["--model", "nowhere"], "tokenizer: expected a directory with a tokenizer.json"),
    ],
)
def test_wrong_options_are_said_in_one_line(table, capsys, options, message):
    code, index = build(table, *options)

    error = capsys.readouterr().err
    assert (code, index.exists()) == (2, False)
    assert message in error
    assert error.count("\n") == 1
