"""Which SGLang is supported, and what differs between versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from sglang_lp.errors import InstallError
from sglang_lp.server import versions
from sglang_lp.server.versions import check_version


@pytest.fixture
def sglang_is(monkeypatch):
    monkeypatch.delenv("SGLANG_LP_ALLOW_UNTESTED", raising=False)  # set by SUITE=canary

    def sglang_is(found):
        monkeypatch.setattr(versions, "version", {"sglang": found}.__getitem__)

    return sglang_is


@pytest.mark.parametrize("found", ["0.5.20", "0.5.21", "0.5.23", "0.5.20.post1"])
def test_a_version_that_was_tested_is_taken(sglang_is, found):
    sglang_is(found)

    assert check_version() == found


@pytest.mark.parametrize("found", ["0.5.19", "0.5.20rc1", "0.5.23.post1", "0.5.24", "0.6", "0.5.3"])
def test_any_other_version_is_refused(sglang_is, found):
    sglang_is(found)
    with pytest.raises(InstallError) as caught:
        check_version()

    assert str(caught.value) == (
        f"expected SGLang 0.5.20 to 0.5.23, found {found}: install a version of sglang-lp that "
        "supports it, uninstall sglang-lp to run without its guard, or set "
        "SGLANG_LP_ALLOW_UNTESTED=1 to run it though no test has"
    )


def test_the_operator_can_take_an_untested_version_which_is_said(sglang_is, monkeypatch, caplog):
    monkeypatch.setenv("SGLANG_LP_ALLOW_UNTESTED", "1")
    sglang_is("0.5.24")

    assert check_version() == "0.5.24"
    assert "no test ran on SGLang 0.5.24 (tested: 0.5.20 to 0.5.23)" in caplog.text


@pytest.mark.parametrize("value", ["", "0", "true", "yes"])
def test_nothing_but_1_takes_it(sglang_is, monkeypatch, value):
    monkeypatch.setenv("SGLANG_LP_ALLOW_UNTESTED", value)
    sglang_is("0.5.24")
    with pytest.raises(InstallError):
        check_version()


def test_a_tested_version_is_taken_without_a_warning(sglang_is, monkeypatch, caplog):
    monkeypatch.setenv("SGLANG_LP_ALLOW_UNTESTED", "1")
    sglang_is("0.5.23")

    assert check_version() == "0.5.23"
    assert caplog.text == ""


def test_without_sglang_there_is_nothing_to_guard(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", version)
    with pytest.raises(InstallError) as caught:
        check_version()

    assert str(caught.value) == "SGLang is not installed in this environment"
    assert caught.value.__suppress_context__
