"""``make`` leaves no process running, however it ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A command that detaches a long sleep as thoroughly as a daemon does, names it, and goes on.
LEAVES_A_DAEMON = """
import subprocess, sys, time
child = subprocess.Popen(
    ["/bin/sh", "-c", "trap '' TERM; sleep 600 & wait"], start_new_session=True,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""
SUPERVISED = """
import os, sys
from scripts import supervise
supervise.GRACE, supervise.SWEEP_GRACE = 2.0, 0.5
supervise.adopt_orphans()
try:
    sys.exit(supervise.run([sys.executable, "-c", *sys.argv[1:]], os.environ))
except supervise.Stopped as stop:
    sys.exit(128 + stop.number)
"""


def start(seconds: float, code: int) -> tuple[subprocess.Popen[str], int]:
    """Return the supervising process and the process id of the daemon below it."""
    arguments = (SUPERVISED, textwrap.dedent(LEAVES_A_DAEMON))
    process = subprocess.Popen(
        [sys.executable, "-c", *arguments, str(seconds), str(code)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, int(process.stdout.readline())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("code", [0, 3])
def test_a_daemon_left_behind_is_ended_and_the_exit_code_kept(code):
    process, daemon = start(seconds=0.1, code=code)

    with process:
        assert process.wait(30) == code

    assert not is_running(daemon)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_what_it_started(number):
    process, daemon = start(seconds=600, code=0)
    time.sleep(0.2)

    with process:
        process.send_signal(number)
        assert process.wait(30) == 128 + number

    assert not is_running(daemon)


def test_the_signal_by_which_an_orphan_of_sglang_reports_a_failure_ends_nothing():
    process, daemon = start(seconds=0.5, code=3)

    with process:
        process.send_signal(signal.SIGQUIT)
        assert process.wait(30) == 3

    assert not is_running(daemon)
