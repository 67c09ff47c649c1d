"""What the tests on a real engine share: models, servers and the oracle.

A test module that wants a server says which::

    pytestmark = [pytest.mark.engine, on_servers("default")]

and takes the fixture ``server``. A server starts in the better part of a minute, so it lives for
the session, and pytest runs all tests of one server together; never do two of them run at once.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "server_side")]

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["*"]
else:
    import tiny_model
    from harness import launch
    from oracle import Oracle
    from servers import POLICY, SERVERS


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def oracle(tiny):
    return Oracle(tiny)


@pytest.fixture(scope="session")
def server(request, tiny, tmp_path_factory):
    arguments, variables = SERVERS[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    with launch(
        tiny, directory, arguments, **{"SGLANG_LP_POLICY": str(POLICY), **variables}
    ) as running:
        yield running
