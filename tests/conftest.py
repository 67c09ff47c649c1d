"""Settings for all tests.

Property tests are seeded: the same examples at every run. To look for new ones, run
``pytest --hypothesis-profile=search``; for a tenth of them, ``--hypothesis-profile=quick``;
``make soak`` searches with ``soak``.
"""

import os
import re
import signal

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: the tests' tensors are small, and an engine may run next to them, or
# another process of pytest-xdist.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("seeded", derandomize=True, database=None, **COMMON)
settings.register_profile("quick", max_examples=10, derandomize=True, database=None, **COMMON)
settings.register_profile("soak", max_examples=1000, **COMMON)
settings.register_profile("search", max_examples=5000, **COMMON)
settings.load_profile("seeded")


@pytest.fixture(autouse=True)
def _outside_of_requests():
    """No test begins with the request of an earlier test, which a gate leaves in its context."""
    from sglang_lp.trust.audit import Asking, asking

    asking.set(Asking())


@pytest.fixture
def default_signals():
    """Python's own SIGINT and SIGHUP, for a test that relies on them.

    A shell starts a background job, or one under ``nohup``, with signals ignored, and child
    processes inherit that.
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def interrupts_are_shown(default_signals):
    """SIGINT as in every process of a server with the plugin."""
    from sglang_lp.faults import show_interrupts

    show_interrupts()


class FailuresAtOnce:
    """Shows a failure when it happens; pytest shows it after the last test."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the test's name and the message of its exception."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._reporter.write_line(f"\nfailed: {report.nodeid}")
            self._reporter.write_line(report.longreprtext if crash is None else crash.message)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Show failures at once, in the process that has the terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(reporter))


#: Marks of tests that run only where ``-m`` names them; pyproject.toml says what each needs.
ON_REQUEST = {"docs", "drafts", "faults", "fleet"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has to be asked for, and run what needs a real engine last.

    So a mistake shows within seconds, not minutes. Several processes (``-n``) begin with the
    engines: the small files that are left at the end keep all processes busy. Fleets come after
    single servers: what failed on one server need not start several again.
    """
    unnamed = ON_REQUEST - {*re.findall(r"\w+", config.option.markexpr)}
    kept, left_out = [], []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        (left_out if marks & unnamed else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    engines_first = "PYTEST_XDIST_WORKER" in os.environ

    def place(item: pytest.Item) -> tuple[bool, bool]:
        marks = {mark.name for mark in item.iter_markers()}
        return ("engine" not in marks) == engines_first, "fleet" in marks

    items[:] = sorted(kept, key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep the tests of a file together in one of several processes (``-n``), and of a server.

    So a server starts once. ``--dist loadgroup`` would do it, but pytest-xdist 3.8 takes no groups
    from pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    from support.servers.configurations import SERVERS

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, name = nodeid.partition("::")
            parameters = name.partition("[")[2].removesuffix("]").split("-")
            servers = [one for one in parameters if one in SERVERS and "/live/" in file]
            return servers[0] if servers else file

    config.option.loadscopereorder = False  # or the files with the most tests came first
    return ByServer(config, log)
