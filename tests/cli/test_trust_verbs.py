"""``sglang-lp list``, ``payload``, ``inspect`` and ``allow``."""

import subprocess
import sys

import dill
import pytest

from sglang_lp import builtins, wire
from sglang_lp.cli import main
from sglang_lp.trust import Policy, Verifier

#: A class by value, made elsewhere: unpickling it would be executing it.
CODE = """
import dill
class Local:
    def __call__(self, logits, custom_param_list=None):
        return logits
print(dill.dumps(Local).hex())
"""


@pytest.fixture(scope="module")
def by_value():
    made = subprocess.run(
        [sys.executable, "-c", CODE], check=True, capture_output=True, text=True, timeout=60
    )
    return bytes.fromhex(made.stdout.strip())


@pytest.fixture
def no_unpickling(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("unpickled")

    monkeypatch.setattr(dill, "loads", refuse)


def test_payload_prints_what_to_str_returns(capsys):
    assert main(["payload", "ForcedSequenceLogitProcessor"]) == 0
    assert capsys.readouterr().out.strip() == builtins.ForcedSequenceLogitProcessor.to_str()


def test_payload_of_a_misspelled_builtin_says_which_was_meant(capsys):
    assert main(["payload", "ForcedSequenceLogitProcesor"]) == 2
    assert "did you mean ForcedSequenceLogitProcessor?" in capsys.readouterr().err


def test_list_shows_every_builtin_and_its_parameters(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in builtins.__all__:
        assert f"{name}\n" in out
        for key in getattr(builtins, name).Params.__struct_fields__:
            assert f"    {key}: " in out


def test_a_reader_that_stops_early_is_no_error():
    command = [sys.executable, "-m", "sglang_lp.cli", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_inspect_names_the_class_and_the_verdict(capsys):
    assert main(["inspect", builtins.ForcedSequenceLogitProcessor.to_str()]) == 0
    out = capsys.readouterr().out
    assert "class    sglang_lp.builtins:ForcedSequenceLogitProcessor\n" in out
    assert "verdict  allowed" in out


def test_inspect_of_code_lists_what_it_would_do_and_runs_none_of_it(
    capsys, by_value, no_unpickling
):
    assert main(["inspect", wire.encode(by_value)]) == 1
    out = capsys.readouterr().out
    assert "what     code: a class by value\n" in out
    assert wire.digest(by_value) in out
    assert "! " in out
    assert "_create_type" in out
    assert "verdict  refused" in out


def test_inspect_does_not_run_pinned_code_either(capsys, by_value, no_unpickling, tmp_path):
    path = tmp_path / "policy.toml"
    pin = f'name = "p"\nsha256 = "{wire.digest(by_value)}"\nsize = {len(by_value)}\n'
    path.write_text(f"[[pin]]\n{pin}")

    assert main(["inspect", wire.encode(by_value), "--policy", str(path)]) == 0
    assert "pinned as 'p'" in capsys.readouterr().out


def test_inspect_reads_standard_input_and_files(capsys, monkeypatch, tmp_path):
    import io

    text = builtins.ForcedSequenceLogitProcessor.to_str() + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["inspect"]) == 0
    (tmp_path / "p.json").write_text(text)
    assert main(["inspect", f"@{tmp_path / 'p.json'}"]) == 0
    assert main(["inspect", f"@{tmp_path / 'absent'}"]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_allow_adds_a_class_and_keeps_the_comments(capsys, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('# ours\nstock = "deny"\nallow = [ # reviewed\n]\n')
    entry = "sglang_lp.builtins:ForcedSequenceLogitProcessor"

    assert main(["allow", entry, "--policy", str(path), "--yes"]) == 0
    assert Policy.from_toml(path).allow == (entry,)
    assert "# ours" in path.read_text()
    assert "# reviewed" in path.read_text()
    before = path.read_text()
    assert main(["allow", entry, "--policy", str(path), "--yes"]) == 0
    assert path.read_text() == before


def test_allow_pins_code_and_the_verifier_then_accepts_it(by_value, tmp_path):
    path = tmp_path / "policy.toml"
    payload = tmp_path / "payload.json"
    payload.write_text(wire.encode(by_value))
    arguments = ["allow", f"@{payload}", "--policy", str(path), "--name", "trial", "--yes"]

    assert main(arguments) == 0
    assert Verifier(Policy.from_toml(path)).resolve(payload.read_text()).__name__ == "Local"


@pytest.mark.parametrize("answer", ["", "n", "no", "maybe"])
def test_without_a_yes_the_policy_is_unchanged(answer, monkeypatch, tmp_path):
    monkeypatch.setattr("builtins.input", lambda _: answer)
    path = tmp_path / "policy.toml"

    entry = "sglang_lp.builtins:ForcedSequenceLogitProcessor"

    assert main(["allow", entry, "--policy", str(path)]) == 1
    assert not path.exists()


def test_allow_refuses_a_class_that_is_no_processor(capsys, tmp_path):
    path = tmp_path / "policy.toml"

    assert main(["allow", "decimal:Decimal", "--policy", str(path), "--yes"]) == 2
    assert "expected a logit processor" in capsys.readouterr().err
    assert not path.exists()


def test_an_uneditable_policy_is_left_alone(capsys, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('"allow" = ["sglang_lp.builtins:DisallowedTokensLogitsProcessor"]\n')
    before = path.read_text()
    entry = "sglang_lp.builtins:ForcedSequenceLogitProcessor"

    assert main(["allow", entry, "--policy", str(path), "--yes"]) == 2
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["policy.toml"]
