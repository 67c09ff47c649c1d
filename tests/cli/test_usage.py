"""Help, versions, suggestions and progress of the command line."""

import io
import re
import subprocess
import sys
import time
from importlib import metadata

import pytest

from sglang_lp.cli import _VERBS, main, terminal


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_version_names_everything_that_matters_in_a_report(capsys):
    assert main(["--version"]) == 0
    own, sglang = metadata.version("sglang-lp"), metadata.version("sglang")
    assert capsys.readouterr().out.startswith(f"sglang-lp {own} (SGLang {sglang}, Python 3.")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["lst"], "did you mean 'list'?"),
        (["server"], "did you mean 'serve'?"),
        (["doctr"], "did you mean 'doctor'?"),
        (["catalogue", "biuld"], "did you mean 'build'?"),
        (["doctor", "--polcy", "x"], "did you mean '--policy'?"),
        (["trace", "a", "b", "--tokeniser", "x"], "did you mean '--tokenizer'?"),
        (["serve", "--model-path", "x"], "come after --: sglang-lp serve -- --model-path ..."),
    ],
)
def test_a_misspelt_name_gets_the_one_that_was_meant(arguments, meant, capsys):
    assert refused(arguments, capsys).rstrip().endswith(meant)


def test_a_name_like_none_gets_no_suggestion(capsys):
    assert "did you mean" not in refused(["xyzzy"], capsys)
    assert "did you mean" not in refused(["doctor", "--xyzzy"], capsys)


#: Asks bash for the completions of the last word of a line.
ASKED = """
COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
function=$(complete -p sglang-lp | sed "s/.*-F \\([^ ]*\\).*/\\1/"); "$function"
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "expected"), [("sglang-lp doc", "doctor"), ("sglang-lp doctor --pol", "--policy")]
)
def test_bash_completes_verbs_and_options(line, expected, capsys):
    assert main(["--print-completion", "bash"]) == 0
    script = capsys.readouterr().out + ASKED.format(line=line)
    told = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)

    assert told.stdout.split() == [expected]


def test_a_shell_without_completions_is_refused_with_those_that_have_them(capsys):
    told = refused(["--print-completion", "nosh"], capsys)

    known = re.search("expected one of (.*), got", told)[1].split(", ")
    assert known[:2] == ["bash", "zsh"]
    assert len(known) == 5, "the changelog says so"
    for shell in known:
        assert main(["--print-completion", shell]) == 0
        assert "doctor" in capsys.readouterr().out
    assert told.rstrip().endswith("got 'nosh'")


def test_completions_without_their_library_name_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert "sglang-lp[completion]" in refused(["--print-completion", "bash"], capsys)


def test_the_help_names_the_two_dashes(capsys):
    assert main(["--help"]) == 0
    assert "sglang-lp serve -- --model-path" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["", *_VERBS])
def test_help_fits_a_terminal(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    assert main([*filter(None, [verb]), "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_who_waits_on_a_terminal_sees_for_what(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "_PATIENCE", 0)
    monkeypatch.setattr(terminal, "_TICK", 0.01)

    with terminal.progress("first") as step:
        time.sleep(0.1)
        step("se\x1b[2Jcond")
        time.sleep(0.1)

    drawn = screen.getvalue().split("\r\x1b[K")
    assert drawn[0] == drawn[-1] == ""
    assert {re.sub(r" \(\d+ s\)$", "", line) for line in drawn[1:-1]} == {
        "first",
        r"se\x1b[2Jcond",
    }


def test_a_short_wait_and_a_file_show_nothing(monkeypatch, capsys):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal.progress("x"):
        pass
    assert screen.getvalue() == ""
    monkeypatch.undo()

    monkeypatch.setattr(terminal, "_PATIENCE", 0)
    with terminal.progress("x") as step:
        step("y")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verb", ["list", "doctor", "resolve", "inspect", "--help"])
def test_no_output_has_colours_so_no_color_holds(verb, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    arguments = {"inspect": ["DRYLogitProcessor"], "resolve": ["nowhere"]}.get(verb, [])

    main([verb, *arguments])
    assert "\x1b" not in "".join(capsys.readouterr())
