"""Helpers of the tests: processes end with all their children, and failures give their reason."""

import os
import sys
import time
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from sglang_lp.server.versions import ALLOW_UNTESTED
from support.hooking import propagate
from support.processes import EngineError, play, running
from support.servers.server import launch
from support.settings import environment

ROOT = Path(__file__).parents[1]
#: Tests of two servers, and a test of none.
CONFTEST = """
import pytest
from tests.live.conftest import pytest_runtest_teardown

@pytest.fixture(scope="session")
def server(request):
    yield print(request.param, "starts")
    print(request.param, "ends")
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("server", ["one", "other"], indirect=True, scope="session")
def test_asks(server, number):
    print("asked")

def test_of_no_server():
    print("on its own")
"""
STARTS_A_CHILD = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


def is_running(pid):
    """Tell whether a process runs; one that is dead but not yet reaped does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def fail_beside_a_child(log):
    with running([sys.executable, "-c", STARTS_A_CHILD], os.environ, log):
        while not log.read_text().endswith("\n"):
            time.sleep(0.01)
        child = int(log.read_text())
        assert is_running(child)
        raise LookupError(child)


def test_a_process_ends_with_what_it_started_even_if_the_block_fails(tmp_path):
    with pytest.raises(LookupError) as failed:
        fail_beside_a_child(tmp_path / "log")

    (child,) = failed.value.args
    deadline = time.monotonic() + 30  # the kernel takes its time
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_without_an_answer_is_an_error_with_the_end_of_its_log(tmp_path):
    with pytest.raises(EngineError, match=r"(?s)support.nothing wrote no answer.*No module named"):
        play("support.nothing", {}, tmp_path, environment({}), 60)


def test_a_server_that_ends_at_its_start_is_an_error_with_the_end_of_its_log(tmp_path):
    command = (sys.executable, "-c", "raise SystemExit('out of memory')")

    with (
        pytest.raises(EngineError, match=r"(?s)ended at its start.*out of memory"),
        launch(tmp_path, tmp_path, command=command),
    ):
        pass


def test_a_server_has_the_variables_and_the_import_path_it_was_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_OF_THE_SHELL", "1")
    monkeypatch.setenv("PYTHONPATH", "/a/checkout/of/sglang")
    monkeypatch.delenv(ALLOW_UNTESTED, raising=False)
    env = environment({"SGLANG_PLUGINS": "none"}, [tmp_path])

    assert {name for name in env if name.startswith("SGLANG_")} == {"SGLANG_PLUGINS"}
    own = str(tmp_path), str(ROOT), "/a/checkout/of/sglang"
    assert env["PYTHONPATH"] == os.pathsep.join(own)


def test_a_server_of_the_canary_may_be_of_an_untested_sglang(monkeypatch):
    monkeypatch.setenv(ALLOW_UNTESTED, "1")

    assert environment({})[ALLOW_UNTESTED] == "1"


FOLDERS = ("benchmarks", "demo", "fuzz", "hunt", "scripts", "support", "tests")


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_shared_is_imported_by_its_name(folder):
    changed = "sys" + ".path"

    # A process that is forked gets the path that it would start with.
    files = [p for p in (ROOT / folder).rglob("*.py") if p.name != "preloaded.py"]
    assert [p for p in files if changed in p.read_text()] == []


def test_a_server_ends_after_the_last_of_its_tests(tmp_path, capsys):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_asking.py").write_text(TESTS)

    pytest.main(["-qq", "-s", "-c", os.devnull, "-p", "no:cacheprovider", str(tmp_path)])

    said = [line.strip(".") for line in capsys.readouterr().out.splitlines()]
    one, other = ([f"{name} starts", "asked", "asked", f"{name} ends"] for name in ("one", "other"))
    assert said[:9] == [*one, *other, "on its own"]


def test_names_that_refer_to_a_hooked_function_are_those_that_sglang_finds(monkeypatch):
    registry = pytest.importorskip("sglang.srt.plugins.hook_registry")
    original, first, second, third = (FunctionType(compile("", "", "exec"), {}) for _ in range(4))

    def after(propagate):
        source, user, later = map(ModuleType, ("source", "user", "later"))
        for module in (source, user):
            monkeypatch.setitem(sys.modules, module.__name__, module)
            module.one = module.two = original
        changed = [propagate(original, first, source)]
        monkeypatch.setitem(sys.modules, "later", later)
        later.imported = user.new = original
        changed.append(propagate(original, second, source))
        changed.append(propagate(first, third, user))
        monkeypatch.delitem(sys.modules, "later")
        return changed, [vars(module) | {"__name__": ""} for module in (source, user, later)]

    assert after(propagate) == after(registry._propagate_patch)
    assert after(propagate)[0] == [2, 2, 0]


def test_a_function_that_a_module_got_back_is_found_there(monkeypatch):
    original, first, second = (FunctionType(compile("", "", "exec"), {}) for _ in range(3))
    source, user = map(ModuleType, ("source", "user"))
    for module in (source, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.one = original

    source.one = first
    assert propagate(original, first, source) == 1
    source.one = original
    user.one = second

    assert propagate(original, second, user) == 1
    assert source.one is second
