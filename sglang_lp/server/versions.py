"""Which SGLang versions the plugin knows, and everything that differs between them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

from sglang_lp.errors import InstallError

__all__ = ["NEWEST", "OLDEST", "check_version", "has_sampling_mask", "speculative_algorithm"]

#: The first version whose sampling can be delayed (``SGLANG_ENABLE_DELAY_SAMPLE``).
OLDEST = "0.5.18"
#: The newest version that the tests ran on.
NEWEST = "0.5.23"


def check_version() -> str:
    """Return the installed SGLang's version.

    Raises:
        InstallError: SGLang is not installed, or its version is not one that was tested.
    """
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        raise InstallError("SGLang is not installed in this environment") from None
    if not Version(OLDEST) <= Version(installed) <= Version(NEWEST):
        raise InstallError(
            f"expected SGLang {OLDEST} to {NEWEST}, found {installed}: install a version of "
            "sglang-lp that supports it, or uninstall sglang-lp to run without its guard"
        )
    return installed


def has_sampling_mask() -> bool:
    """Tell whether this SGLang has ``return_sampling_mask`` (from 0.5.19 on)."""
    from sglang.srt.sampling import custom_logit_processor

    return hasattr(custom_logit_processor, "supports_sampling_mask")


def speculative_algorithm(server_args: Any) -> str | None:
    """Return the name of the server's speculative decoding algorithm, or ``None``."""
    name = server_args.speculative_algorithm
    return None if name is None else str(name).upper()
