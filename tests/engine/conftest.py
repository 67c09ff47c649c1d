"""What the tests on a real engine share: a model, servers and the oracle.

A test module names its servers::

    pytestmark = [pytest.mark.engine, on_servers("default")]

and takes the fixture ``server``. A server takes up to a minute to start, so it lives for the
session, and pytest runs all tests of one server together; two never run at once.
"""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["*"]
else:
    from support import tiny_model
    from support.greedy import Oracle
    from support.server import launch
    from support.servers import POLICY, PROBE, SERVERS, command


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
        tiny,
        directory,
        arguments,
        command=command(request.param),
        paths=[PROBE],
        variables={"SGLANG_LP_POLICY": str(POLICY), **variables},
    ) as running:
        yield running
