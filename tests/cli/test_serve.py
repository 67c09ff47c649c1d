"""``sglang-lp serve``: what it refuses before SGLang is even imported, and a SIGHUP."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from sglang_lp.cli import main, serve


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []
    monkeypatch.setattr(serve, "run", calls.append)
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    monkeypatch.delenv("SGLANG_LP_POLICY", raising=False)
    return calls


def test_sglangs_arguments_go_through_and_processors_are_enabled(launched: list[list[str]]) -> None:
    assert main(["serve", "--", "--model-path", "x"]) == 0

    assert launched == [["--model-path", "x", "--enable-custom-logit-processor"]]


def test_without_sglangs_arguments_it_says_how_it_is_called(
    launched: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve"]) == 2

    assert "sglang-lp serve -- --model-path" in capsys.readouterr().err
    assert launched == []


def test_without_two_dashes_it_shows_where_they_belong(
    launched: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--model-path", "x"])

    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "usage: sglang-lp serve [-h] [--policy FILE] [--cpu] -- ARGUMENTS...\n"
        "sglang-lp serve: error: unrecognized arguments: --model-path; SGLang's own arguments come "
        "after --: sglang-lp serve -- --model-path ...\n"
    )
    assert launched == []


def test_a_plugin_list_without_the_guard_is_refused(
    launched: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "some_other,plugins")

    assert main(["serve", "--", "--model-path", "x"]) == 2

    assert "add sglang_lp to it or unset it" in capsys.readouterr().err
    assert launched == []


def test_a_wrong_policy_is_refused_at_once(
    launched: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    assert main(["serve", "--policy", f"{tmp_path}/none.toml", "--", "--model-path", "x"]) == 2

    assert "none.toml" in capsys.readouterr().err
    assert launched == []


SERVER = """
import time
from sglang_lp.server.startup.serve import refuse_reload
refuse_reload()
print("ready", flush=True)
time.sleep(2)  # resumed after a signal
print("still here", flush=True)
"""


@pytest.mark.usefixtures("default_signals")
def test_a_sighup_does_not_reload_the_policy_and_says_so() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        out, error = process.communicate(timeout=60)

    assert out == "still here\n"
    assert "the policy is not reloaded; restart the server" in error


def test_without_sglang_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sglang", None)

    assert main(["serve", "--", "--model-path", "m"]) == 2
    assert "pip install 'sglang-lp[sglang]'" in capsys.readouterr().err


def test_on_a_cpu_it_adds_what_the_user_did_not_give(launched: list[list[str]]) -> None:
    assert main(["serve", "--cpu", "--", "--model-path", "x", "--max-total-tokens=100"]) == 0

    assert launched == [
        [
            *("--model-path", "x", "--max-total-tokens=100", "--device", "cpu"),
            *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
            *("--disable-cuda-graph", "--enable-custom-logit-processor"),
        ]
    ]
