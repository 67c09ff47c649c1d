"""``sglang-lp watermark``: keys that only their owner may read, and p-values."""

import json
import stat

import pytest

from sglang_lp.cli import main
from sglang_lp.watermark.reading import read_key
from support.models import tiny_model
from support.watermarks import GREEN, GREEN_SCHEME, write_key


@pytest.mark.parametrize("scheme", ["synthid", "kgw"])
def test_a_new_key_is_random_and_private(tmp_path, capsys, scheme):
    paths = [tmp_path / "one.toml", tmp_path / "other.toml"]
    for path in paths:
        assert main(["watermark", "new", str(path), "--scheme", scheme]) == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    one, other = map(read_key, paths)
    assert one.name == other.name == scheme
    assert one.digest != other.digest
    said = capsys.readouterr().out
    assert 'policy: watermark = "' in said
    for line in paths[0].read_text().splitlines():
        number = line.strip(" ,").rpartition("= ")[2]
        assert not number.isdigit() or number not in said


def test_a_key_is_not_overwritten(tmp_path, capsys):
    path = write_key(tmp_path, "kgw", GREEN)
    before = path.read_text()

    assert main(["watermark", "new", str(path)]) == 2
    assert "File exists" in capsys.readouterr().err
    assert path.read_text() == before


def test_tokens_are_tested_with_every_key(tmp_path, capsys):
    key, text = write_key(tmp_path, "kgw", GREEN), tmp_path / "tokens.json"
    tokens = [1]
    for _ in range(60):
        tokens.append(GREEN_SCHEME.green(tokens, range(1000), 1000)[len(tokens)])
    text.write_text(json.dumps(tokens))
    other = tmp_path / "other.toml"
    main(["watermark", "new", str(other)])
    capsys.readouterr()
    given = ["watermark", "detect", str(text), "--tokens", "--key", str(key), "--key", str(other)]

    assert main([*given, "--vocab-size", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["scheme"] for one in found] == ["kgw", "synthid"]
    assert found[0]["p_value"] < 1e-30
    assert found[1]["p_value"] > 1e-4
    assert main([*given, "--vocab-size", "1000"]) == 0
    said = capsys.readouterr().out
    assert "61, of which 60 count" in said
    assert str(GREEN["hashing_key"]) not in said


def test_a_text_is_cut_by_the_tokenizer_of_the_model(tmp_path, capsys):
    model, key = tiny_model.make(tmp_path / "model"), write_key(tmp_path, "kgw", GREEN)
    text = tmp_path / "answer.txt"
    text.write_text(" w300 w301 w302 w303\n")

    given = ["watermark", "detect", str(text), "--key", str(key), "--json"]
    assert main([*given, "--model", str(model)]) == 0
    expected = tiny_model.tokenizer().encode(" w300 w301 w302 w303").ids
    assert json.loads(capsys.readouterr().out)[0]["tokens"] == len(expected)
    assert main(given) == 2
    assert "--model: expected the model's directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "expected a JSON list of token ids"),
        (f"[{1 << 70}]", "expected a JSON list of token ids"),
        ("[1, 2]", "expected the number of logits"),
    ],
)
def test_what_cannot_be_tested_is_said(tmp_path, capsys, text, message):
    key, path = write_key(tmp_path, "kgw", GREEN), tmp_path / "text"
    path.write_text(text)

    assert main(["watermark", "detect", str(path), "--tokens", "--key", str(key)]) == 2
    assert message in capsys.readouterr().err
