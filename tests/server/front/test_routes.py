"""The table of routes has every route of SGLang's app, and says how it treats processors."""

from __future__ import annotations

import os

import pytest
from packaging.version import Version
from sglang.version import __version__ as installed

from sglang_lp.server.front.routes import ROUTES, RouteKind, walk

FOUND = Version(installed)


@pytest.fixture(scope="module")
def app():
    from sglang.srt.entrypoints import http_server

    return http_server.app


def due():
    """Return the rows that the installed SGLang has."""
    return [
        route
        for route in ROUTES
        if Version(route.since) <= FOUND
        and (route.until is None or Version(route.until) >= FOUND)
        and (route.needs is None or route.needs in os.environ)
    ]


def test_every_route_of_the_app_stands_in_the_table_and_no_other(app):
    found = {
        (path, endpoint.__name__)
        for path, endpoint in walk(app)
        if not endpoint.__module__.startswith("sglang_lp.")  # its own, if the plugin is in place
    }

    assert found == {(route.path, route.endpoint) for route in due()}


def test_the_routes_that_sglang_leaves_open_without_a_key_are_an_administrators(app):
    marked = {
        endpoint.__name__
        for _, endpoint in walk(app)
        if getattr(endpoint, "_auth_level", None) is not None
    }
    listed = {route.endpoint for route in due() if route.kind is RouteKind.ADMINISTRATORS}
    unmarked = {"set_trace_level", "load_lora_adapter_from_tensors"}  # before 0.5.22

    assert marked == (listed - unmarked if Version("0.5.22") > FOUND else listed)
