"""What the tests of the adapters share: a model without a server."""

from __future__ import annotations

import pytest

from support import tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("tiny-model"))
