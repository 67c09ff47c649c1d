"""Output to a closed pipe or a full disk, and a missing input."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.cli import terminal
from sglang_lp.errors import escaped
from sglang_lp.trust import Policy

PROGRAM = [sys.executable, "-m", "sglang_lp"]
ENTRY = "sglang_lp.builtins:DRYLogitProcessor"

#: Arguments -> exit code.
VERBS = {
    "done": (["list"], 0),
    "refused": (["inspect", '{"callable": "80049522"}'], 1),
    "failed": (["doctor", "--policy", "missing.toml"], 1),
    "unreadable": (["inspect", "--policy", "missing.toml", "DRYLogitProcessor"], 2),
    "misspelled": (["bogus"], 2),
    "help": (["--help"], 0),
}
verbs = pytest.mark.parametrize(("arguments", "code"), VERBS.values(), ids=list(VERBS))
buffering = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


@contextmanager
def no_reader():
    read, write = os.pipe()
    os.close(read)
    try:
        yield write
    finally:
        os.close(write)


def run(arguments, *, redirected="", stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings):
    """Run a command, with the shell's redirections if any."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *PROGRAM, *arguments],
        stdin=settings.pop("stdin", subprocess.DEVNULL),
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **settings},
        text=True,
        check=False,
        timeout=60,
    )


@buffering
@verbs
def test_a_reader_that_left_changes_no_exit_code(arguments, code, unbuffered):
    with no_reader() as pipe:
        done = run(arguments, stdout=pipe, PYTHONUNBUFFERED=unbuffered)

    assert done.returncode == code
    assert (done.stderr == "") == (code < 2)
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


@verbs
def test_a_reader_that_left_the_errors_too_changes_none_either(arguments, code):
    with no_reader() as pipe:
        assert run(arguments, stdout=pipe, stderr=pipe).returncode == code


@verbs
def test_an_output_that_was_closed_changes_no_exit_code(arguments, code):
    done = run(arguments, redirected=">&-")

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert run(arguments, redirected=">&- 2>&-").returncode == code


@buffering
@verbs
def test_an_output_that_is_full_is_an_error_where_all_else_was_well(arguments, code, unbuffered):
    done = run(arguments, redirected=">/dev/full", PYTHONUNBUFFERED=unbuffered)

    assert done.returncode == (code or 2)
    if code < 2:
        said = "sglang-lp: cannot write to standard output: No space left on device\n"
        assert done.stderr == said
    assert "Traceback" not in done.stderr
    assert run(arguments, redirected=">/dev/full 2>/dev/full").returncode == (code or 2)


@buffering
def test_a_policy_is_written_whether_anybody_reads_of_it_or_not(tmp_path, unbuffered):
    path = tmp_path / "policy.toml"
    with no_reader() as pipe:
        done = run(
            ["allow", ENTRY, "--policy", str(path), "--yes"],
            stdout=pipe,
            PYTHONUNBUFFERED=unbuffered,
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert Policy.from_toml(path).allow == (ENTRY,)


def test_what_the_terminal_cannot_show_is_escaped(tmp_path):
    policy = tmp_path / "réglage.toml"
    policy.write_text("")
    listed = run(["list"], PYTHONIOENCODING="ascii")
    done = run(["doctor", "--policy", str(policy)], PYTHONIOENCODING="ascii")

    assert (listed.returncode, listed.stderr) == (0, "")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"r\xe9glage.toml" in done.stdout


@pytest.mark.parametrize(
    ("redirected", "said"),
    [
        ("<&-", "payload: expected a text on standard input, which is closed\n"),
        ("0>/dev/null", "payload: cannot read '-' as text: [Errno 9] Bad file descriptor\n"),
    ],
)
def test_an_input_that_cannot_be_read_is_said_in_a_line(redirected, said):
    done = run(["inspect"], redirected=redirected)

    assert (done.returncode, done.stderr) == (2, f"sglang-lp inspect: {said}")


@pytest.mark.parametrize("redirected", ["<&-", "</dev/null", "0>/dev/null"])
def test_nobody_there_to_ask_is_a_no(tmp_path, redirected):
    path = tmp_path / "policy.toml"
    done = run(["allow", ENTRY, "--policy", str(path)], redirected=redirected)

    assert (done.returncode, done.stderr) == (1, "")
    assert "not allowed; the policy is unchanged" in done.stdout
    assert not path.exists()


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\xff\n", 1)])
def test_the_answer_counts_whether_the_question_was_read_or_not(tmp_path, answer, code):
    path = tmp_path / "policy.toml"
    (tmp_path / "answer").write_bytes(answer)
    with no_reader() as pipe, (tmp_path / "answer").open() as stdin:
        done = run(["allow", ENTRY, "--policy", str(path)], stdin=stdin, stdout=pipe)

    assert (done.returncode, done.stderr) == (code, "")
    assert path.exists() == (code == 0)


@pytest.mark.usefixtures("default_signals")
def test_an_interrupt_at_the_question_ends_it_without_a_word(tmp_path):
    path = tmp_path / "policy.toml"
    with subprocess.Popen(
        [*PROGRAM, "allow", ENTRY, "--policy", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        asked = b""
        while not asked.endswith(b"[y/N] "):
            asked += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (130, b"")
    assert not path.exists()


@given(st.text())
def test_what_is_printed_holds_lines_and_nothing_else_that_a_terminal_acts_on(text):
    printed = escaped(text)

    assert all(one.isprintable() or one in "\n\t" for one in printed)
    kept = [one for one in text if one.isprintable() or one in "\n\t"]
    assert printed == text or len(printed) > len(kept)


def test_every_line_goes_that_way(capsys):
    for write in (terminal.say, terminal.complain):
        write("\x1b[31m\u202ered")
    said = capsys.readouterr()

    assert said.out == said.err == "\\x1b[31m\\u202ered\n"
