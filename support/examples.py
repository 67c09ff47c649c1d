"""How many examples a property test runs, measured by the profile: ``make quick`` runs few."""

from __future__ import annotations

from hypothesis import settings


def examples(times: float) -> settings:
    """Return settings with ``times`` as many examples as the profile in use has."""
    return settings(max_examples=max(1, round(times * settings().max_examples)))
