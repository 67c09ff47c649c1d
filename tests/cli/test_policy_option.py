"""Every verb that works with a policy takes it from where a server does."""

import os

import pytest

from sglang_lp.cli import main, serve

#: Verb -> arguments before and after ``--policy FILE``.
VERBS = {
    "serve": (["serve"], ["--", "--model-path", "x"]),
    "inspect": (["inspect"], ["DRYLogitProcessor"]),
    "doctor": (["doctor"], []),
}
verbs = pytest.mark.parametrize(("head", "tail"), VERBS.values(), ids=list(VERBS))


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    calls = []
    monkeypatch.setattr(serve, "run", calls.append)
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    monkeypatch.setenv("SGLANG_LP_POLICY", "")  # put back afterwards, whatever serve made of it
    return calls


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text("")
    return str(path)


@verbs
def test_without_a_policy_it_is_the_default_one(head, tail):
    assert main([*head, *tail]) == 0


@verbs
def test_the_environment_names_the_policy(head, tail, launched, monkeypatch, capsys):
    monkeypatch.setenv("SGLANG_LP_POLICY", "missing.toml")

    assert main([*head, *tail]) == (1 if head == ["doctor"] else 2)
    assert "missing.toml: cannot be read: No such file" in "".join(capsys.readouterr())
    assert launched == []


@verbs
def test_the_option_wins_over_the_environment(head, tail, monkeypatch, policy):
    monkeypatch.setenv("SGLANG_LP_POLICY", f"{policy}.missing")

    assert main([*head, "--policy", policy, *tail]) == 0


def test_a_policy_that_allows_less_changes_the_verdict(monkeypatch, tmp_path, capsys):
    path = tmp_path / "policy.toml"
    path.write_text('builtins = false\nstock = "deny"\n')
    monkeypatch.setenv("SGLANG_LP_POLICY", str(path))

    assert main(["inspect", "DRYLogitProcessor"]) == 1
    assert f"policy   {path}\n" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    assert f"policy: 0 processors allowed ({path})\n" in capsys.readouterr().out


def test_the_server_is_told_the_policy_that_was_checked(launched, monkeypatch, policy, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert main(["serve", "--policy", "policy.toml", "--", "--model-path", "x"]) == 0
    assert len(launched) == 1
    assert os.environ["SGLANG_LP_POLICY"] == policy


@pytest.mark.parametrize(
    ("head", "tail"),
    [*VERBS.values(), (["allow"], ["sglang_lp.builtins:DRYLogitProcessor", "--yes"])],
    ids=[*VERBS, "allow"],
)
def test_an_empty_name_is_no_default_policy(head, tail, launched, capsys):
    with pytest.raises(SystemExit) as end:
        main([*head, "--policy", "", *tail])

    assert end.value.code == 2
    assert "--policy: expected the name of a policy file, got an empty" in capsys.readouterr().err
    assert launched == []


@pytest.mark.parametrize("place", ["file", "folder"])
def test_doctor_says_that_everybody_can_write_a_policy(place, tmp_path, capsys):
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "policy.toml"
    path.write_text("")
    assert main(["doctor", "--policy", str(path)]) == 0
    (path if place == "file" else folder).chmod(0o777)

    assert main(["doctor", "--policy", str(path)]) == 1
    assert "only its owner can write, got mode 777; chmod o-w it" in capsys.readouterr().out
