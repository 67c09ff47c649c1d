"""Model, servers and oracle for the tests on a real engine.

A test module names its servers::

    pytestmark = [pytest.mark.engine, on_servers("default")]

and takes the fixture ``server``. A server takes up to a minute to start, so pytest runs all tests
of one server together, and it ends after the last of them: two never run at once in one process.
"""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["*"]
else:
    from demo.model import ensure_model
    from support.catalogues import with_catalogue
    from support.models import draft_models, tiny_model
    from support.oracles.greedy import Oracle
    from support.plugins import PROBES
    from support.servers.configurations import POLICY, SERVERS, SPAWNED, WATERMARKED, command
    from support.servers.server import launch
    from support.watermarks import MARKED, with_watermark


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def drafting(tiny, tmp_path_factory):
    made = draft_models.make_all(tmp_path_factory.mktemp("draft-models"), tiny)
    return {**made, "demo": ensure_model()}


@pytest.fixture(scope="session")
def oracle(server):
    return Oracle(server.arguments["model_path"])


@pytest.fixture(scope="session")
def server(request, tiny, tmp_path_factory):
    arguments, variables = SERVERS[request.param]
    if any(name.endswith("model_path") for name in arguments):
        models = request.getfixturevalue("drafting")
        arguments = {
            name: models[value] if name.endswith("model_path") else value
            for name, value in arguments.items()
        }
    directory = tmp_path_factory.mktemp(request.param)
    policy = with_catalogue(POLICY, directory)
    with_watermark(policy, *WATERMARKED.get(request.param, ()))
    if request.param in WATERMARKED:
        policy.write_text(policy.read_text() + MARKED)
    with launch(
        tiny,
        directory,
        arguments,
        command=command(request.param),
        paths=[PROBES],
        variables={"SGLANG_LP_POLICY": str(policy), **variables},
        forked=request.param not in SPAWNED,
    ) as running:
        yield running


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End a server after the last of its tests.

    SGLang's controller of data parallelism spins on a core as long as its server runs.
    """
    served, following = map(_server_of, (item, nextitem))
    if served and served != following:
        item._fixtureinfo.name2fixturedefs["server"][-1].finish(item._request)


def _server_of(item):
    callspec = getattr(item, "callspec", None)
    return callspec and callspec.params.get("server")
