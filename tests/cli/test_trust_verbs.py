"""``sglang-lp payload``, ``inspect`` and ``allow``."""

import io
import json
import subprocess
import sys
from pathlib import Path

import dill
import pytest

from sglang_lp import builtins, wire
from sglang_lp.cli import main
from sglang_lp.errors import PayloadRefused
from sglang_lp.trust import Policy, Verifier

ENTRY = "sglang_lp.builtins:ForcedSequenceLogitProcessor"

#: A class by value, made elsewhere: unpickling it would be executing it.
CODE = """
import dill
class Local:
    def __call__(self, logits, custom_param_list=None):
        return logits
print(dill.dumps(Local).hex())
"""


def by_value_of(code):
    made = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return bytes.fromhex(made.stdout.strip())


@pytest.fixture(scope="module")
def by_value():
    return by_value_of(CODE)


def pin_file(folder, pickled, size=None):
    path = folder / "policy.toml"
    pin = f'name = "p"\nsha256 = "{wire.digest(pickled)}"\nsize = {size or len(pickled)}\n'
    path.write_text(f"[[pin]]\n{pin}")
    return str(path)


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
    path = pin_file(tmp_path, by_value)

    assert main(["inspect", wire.encode(by_value), "--policy", path]) == 0
    assert "pinned as 'p'" in capsys.readouterr().out


def test_a_pin_of_another_size_allows_nothing(capsys, by_value, no_unpickling, tmp_path):
    path = pin_file(tmp_path, by_value, size=len(by_value) + 1)

    assert main(["inspect", wire.encode(by_value), "--policy", path]) == 1
    assert "verdict  refused: custom_logit_processor: " in capsys.readouterr().out


LONG = CODE.replace("class Local:", f"class Local:\n    data = {'x' * 5000!r}")


@pytest.mark.parametrize(
    "around", [("", " "), (" ", ""), ("{ ", "")], ids=["after", "before", "in"]
)
def test_a_long_pinned_payload_with_other_white_space_is_refused_as_on_a_server(
    around, capsys, no_unpickling, tmp_path
):
    code = by_value_of(LONG)
    path = pin_file(tmp_path, code)
    before, after = around
    text = before + wire.encode(code).removeprefix(before.strip()) + after

    with pytest.raises(PayloadRefused) as refusal:
        Verifier(Policy.from_toml(path)).lookup(text)
    assert main(["inspect", text, "--policy", path]) == 1
    assert f"verdict  refused: {refusal.value}\n" in capsys.readouterr().out

    (tmp_path / "p.json").write_text(wire.encode(code) + "\n")
    assert main(["inspect", f"@{tmp_path / 'p.json'}", "--policy", path]) == 0


@pytest.mark.parametrize("text", ["{}", '{"callable": "8"}', "", " DRYLogitProcessor", "os:system"])
def test_inspect_of_what_is_no_payload_is_no(text, capsys):
    assert main(["inspect", text]) == 1
    assert "verdict  refused: " in capsys.readouterr().out


def test_inspect_reads_standard_input_and_files(capsys, monkeypatch, tmp_path):
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
    assert main(["allow", ENTRY, "--policy", str(path), "--yes"]) == 0
    assert Policy.from_toml(path).allow == (ENTRY,)
    assert "# ours" in path.read_text()
    assert "# reviewed" in path.read_text()
    before = path.read_text()
    assert main(["allow", ENTRY, "--policy", str(path), "--yes"]) == 0
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# Ours.\n# Reviewed in May.\n\nbuiltins = true\n",
            "# Ours.\n# Reviewed in May.\n\nallow",
        ),
        ("# Ours.\n", "# Ours.\nallow"),
        ("# About the key below.\nbuiltins = true\n", "allow"),
        ("builtins = true\n", "allow"),
    ],
)
def test_allow_writes_below_the_comment_of_the_file(before, after, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(before)

    assert main(["allow", ENTRY, "--policy", str(path), "--yes"]) == 0
    assert path.read_text().startswith(f"{after} = [")
    assert path.read_text().endswith(
        before[-len("builtins = true\n") :] if "b" in before else "]\n"
    )


def test_inspect_gives_its_verdict_to_a_program(capsys):
    for payload, code in (("DRYLogitProcessor", 0), ('{"callable": "80"}', 1)):
        assert main(["inspect", "--json", payload]) == code
        said = json.loads(capsys.readouterr().out)
        assert said["allowed"] is (code == 0)
        assert said["policy"] == "by default"


def test_allow_pins_code_and_the_verifier_then_accepts_it(by_value, tmp_path):
    path = tmp_path / "policy.toml"
    payload = tmp_path / "payload.json"
    payload.write_text(wire.encode(by_value))
    arguments = ["allow", f"@{payload}", "--policy", str(path), "--name", "trial", "--yes"]

    assert main(arguments) == 0
    assert Verifier(Policy.from_toml(path)).resolve(payload.read_text()).__name__ == "Local"


def test_a_pin_of_another_size_is_not_taken_for_the_pin(by_value, capsys, tmp_path):
    path = pin_file(tmp_path, by_value, size=len(by_value) + 1)
    payload = tmp_path / "payload.json"
    payload.write_text(wire.encode(by_value))

    assert main(["allow", f"@{payload}", "--policy", path, "--yes"]) == 2
    assert "expected each sha256 once, got one twice" in capsys.readouterr().err
    pin_file(tmp_path, by_value)
    assert main(["allow", f"@{payload}", "--policy", path, "--yes"]) == 0
    assert f"{path} pins it already\n" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["", "n", "no", "maybe"])
def test_without_a_yes_the_policy_is_unchanged(answer, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
    path = tmp_path / "policy.toml"

    assert main(["allow", ENTRY, "--policy", str(path)]) == 1
    assert not path.exists()


def test_allow_refuses_a_class_that_is_no_processor(capsys, tmp_path):
    path = tmp_path / "policy.toml"

    assert main(["allow", "decimal:Decimal", "--policy", str(path), "--yes"]) == 2
    assert "expected a logit processor" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    ['"allow" = ["sglang_lp.builtins:DisallowedTokensLogitsProcessor"]\n', "pin = []\n"],
    ids=["a quoted key", "a list of pins"],
)
def test_an_uneditable_policy_is_left_alone(text, by_value, capsys, tmp_path):
    policy, payload = tmp_path / "policy.toml", tmp_path / "payload.json"
    policy.write_text(text)
    payload.write_text(wire.encode(by_value))
    what = f"@{payload}" if "pin" in text else ENTRY

    assert main(["allow", what, "--policy", str(policy), "--yes"]) == 2
    assert capsys.readouterr().err == (
        f"sglang-lp allow: {policy} is written in a way that cannot be edited; add it by hand\n"
    )
    assert policy.read_text() == text
    assert {file.name for file in tmp_path.iterdir()} == {"policy.toml", "payload.json"}


@pytest.mark.parametrize(
    "name",
    ["nodir/policy.toml", "file/policy.toml", "n" * 300, ".", "loop"],
    ids=["no folder", "no folder either", "long", "a folder", "a loop of links"],
)
def test_a_policy_that_cannot_be_written_is_an_error_in_one_line(name, capsys, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")

    assert main(["allow", ENTRY, "--policy", str(tmp_path / name), "--yes"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sglang-lp allow: policy {tmp_path / name}: cannot be ")
    assert error.count("\n") == 1
    assert {file.name for file in tmp_path.iterdir()} == {"file", "loop"}


@pytest.fixture
def package(monkeypatch, tmp_path):
    """Write a module of the operator's."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def write(text):
        (folder / "operators_module.py").write_text(text)

    yield write
    sys.modules.pop("operators_module", None)


PROCESSOR = """
from sglang_lp.processor import LogitProcessor
class Own(LogitProcessor):
    {doc}
    def edit(self, request, edits): pass
"""


@pytest.mark.parametrize(
    ("doc", "said"),
    [
        ("", "no docstring"),
        ("''", "no docstring"),
        ("' \\n '", "no docstring"),
        ("'\\n  Does it.\\n  And more.'", "Does it."),
    ],
)
def test_allow_shows_the_first_line_of_the_docstring(doc, said, package, capsys, tmp_path):
    package(PROCESSOR.format(doc=doc))
    path = tmp_path / "policy.toml"

    assert main(["allow", "operators_module:Own", "--policy", str(path), "--yes"]) == 0
    assert f"class    operators_module:Own: {said}\n" in capsys.readouterr().out


def test_a_module_that_ends_the_process_ends_neither_verb(package, capsys, tmp_path):
    package("raise SystemExit(0)\n")
    path = tmp_path / "policy.toml"
    said = "operators_module:Own: importing operators_module failed: SystemExit: 0"

    assert main(["allow", "operators_module:Own", "--policy", str(path), "--yes"]) == 2
    assert f"sglang-lp allow: allow: {said}" in capsys.readouterr().err
    path.write_text('allow = ["operators_module:Own"]\n')
    assert main(["doctor", "--policy", str(path)]) == 1
    assert f"FAILED  policy: policy {path}: allow[0]: {said}" in capsys.readouterr().out


def test_what_is_wrong_in_the_policy_already_is_said_of_that_file(capsys, tmp_path):
    path = tmp_path / "policy.toml"
    text = 'allow = ["sglang_lp.builtins:DRYLogitProcessor", "no_such_package:C"]\n'
    path.write_text(text)

    assert main(["allow", ENTRY, "--policy", str(path), "--yes"]) == 2
    assert f"allow: policy {path}: allow[1]: no_such_package:C: " in capsys.readouterr().err
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["trial 🎉", 'a "b" \\ c', "x = 1 # y"])
def test_a_pin_is_called_what_the_person_says(name, by_value, tmp_path):
    policy, payload = tmp_path / "policy.toml", tmp_path / "payload.json"
    payload.write_text(wire.encode(by_value))

    assert main(["allow", f"@{payload}", "--policy", str(policy), "--name", name, "--yes"]) == 0
    assert [pin.name for pin in Policy.from_toml(policy).pin] == [name]


@pytest.mark.parametrize("name", ["\ud800", "\nb", "\x1b[31m", "\x7f", "\u2028"])
def test_a_name_that_would_spoil_a_log_is_refused(name, by_value, capsys, tmp_path):
    policy, payload = tmp_path / "policy.toml", tmp_path / "payload.json"
    payload.write_text(wire.encode(by_value))

    assert main(["allow", f"@{payload}", "--policy", str(policy), "--name", name, "--yes"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sglang-lp allow: --name: expected printable characters, got '\\")
    assert error.isascii()
    assert not policy.exists()


@pytest.mark.parametrize("there", [True, False], ids=["leads to a file", "dangles"])
def test_a_policy_that_is_a_link_stays_one(there, tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "policy.toml", tmp_path / "policy.toml"
    link.symlink_to(Path("real", "policy.toml"))
    if there:
        target.write_text("# ours\n")
        target.chmod(0o640)

    assert main(["allow", ENTRY, "--policy", str(link), "--yes"]) == 0
    assert link.readlink() == Path("real", "policy.toml")
    assert Policy.from_toml(target).allow == (ENTRY,)
    if there:
        assert "# ours" in target.read_text()
        assert target.stat().st_mode & 0o777 == 0o640


def test_a_file_keeps_its_line_ends(by_value, tmp_path):
    policy, payload = tmp_path / "policy.toml", tmp_path / "payload.json"
    payload.write_text(wire.encode(by_value))
    for end in (b"\r\n", b"\n"):
        policy.write_bytes(b"# ours" + end + b"allow = []" + end)
        for what in (ENTRY, f"@{payload}"):
            assert main(["allow", what, "--policy", str(policy), "--yes"]) == 0
        raw = policy.read_bytes()
        assert raw.startswith(b"# ours" + end)
        assert raw.count(b"\n") == raw.count(end) > 5
        assert raw.count(b"\r") == (raw.count(b"\n") if end == b"\r\n" else 0)


@pytest.mark.parametrize("text", ["{}", '{"callable": "8"}', "os:system"])
def test_a_malformed_payload_is_not_allowed(text, capsys, tmp_path):
    payload = tmp_path / "payload.json"
    payload.write_text(text)

    assert main(["allow", f"@{payload}", "--policy", str(tmp_path / "p.toml"), "--yes"]) == 1
    assert "sglang-lp allow: custom_logit_processor: expected " in capsys.readouterr().err


def test_a_payloads_module_is_imported_only_once_it_is_allowed(tmp_path, monkeypatch, capsys):
    (tmp_path / "imports_leave_marks.py").write_text(
        f"open({str(tmp_path / 'mark')!r}, 'w').close()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    payload = tmp_path / "payload"
    payload.write_text(wire.payload_for("imports_leave_marks", "Own"))
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))

    policy = str(tmp_path / "policy.toml")
    assert main(["allow", f"@{payload}", "--policy", policy]) == 1
    assert not (tmp_path / "mark").exists()
    assert "imported from imports_leave_marks once you allow it" in capsys.readouterr().out
    assert main(["allow", f"@{payload}", "--policy", policy, "--yes"]) == 2  # it has no Own
    assert (tmp_path / "mark").exists()
