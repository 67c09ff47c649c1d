"""Settings for all tests.

Property tests are seeded: the same examples at every run. To look for new ones, run
``pytest --hypothesis-profile=search``.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: the tests' tensors are small, and an engine may run beside them.
os.environ.setdefault("OMP_NUM_THREADS", "2")

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("seeded", derandomize=True, database=None, **COMMON)
settings.register_profile("search", max_examples=5000, **COMMON)
settings.load_profile("seeded")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what needs a real engine last: a mistake shows within seconds, not minutes."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is not None)
