"""The SGLang versions that the plugin supports."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from sglang_lp.errors import InstallError

#: The oldest version that the tests pass on (``make test SUITE=versions``).
OLDEST = "0.5.20"
#: The newest one.
NEWEST = "0.5.23"
#: The first version with a beam search.
BEAM_SEARCH = "0.5.23"
#: Environment variable; with ``1`` the operator takes a version that no test ran on.
ALLOW_UNTESTED = "SGLANG_LP_ALLOW_UNTESTED"

logger = logging.getLogger(__name__)


def check_version() -> str:
    """Return the installed SGLang's version, and warn of one that the operator took untested.

    Raises:
        InstallError: SGLang is not installed, or its version is not one that was tested.
    """
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        raise InstallError("SGLang is not installed in this environment") from None
    if _is_tested(installed):
        return installed
    if os.environ.get(ALLOW_UNTESTED) != "1":
        raise InstallError(
            f"expected SGLang {OLDEST} to {NEWEST}, found {installed}: install a version of "
            "sglang-lp that supports it, uninstall sglang-lp to run without its guard, or set "
            f"{ALLOW_UNTESTED}=1 to run it though no test has"
        )
    logger.warning(
        "sglang-lp: no test ran on SGLang %s (tested: %s to %s); %s=1 takes it as it is: the guard "
        "is checked at start-up as always, what processors see and do is not",
        *(installed, OLDEST, NEWEST, ALLOW_UNTESTED),
    )
    return installed


@cache
def untested() -> str | None:
    """Return the installed SGLang's version if no test ran on it."""
    installed = version("sglang")
    return None if _is_tested(installed) else installed


def _is_tested(installed: str) -> bool:
    from packaging.version import Version  # comes with SGLang

    return Version(OLDEST) <= Version(installed) <= Version(NEWEST)


@cache
def has_beam_search() -> bool:
    """Tell whether the installed SGLang has the beam search that hooks know."""
    from packaging.version import Version  # comes with SGLang

    return Version(version("sglang")) >= Version(BEAM_SEARCH)
