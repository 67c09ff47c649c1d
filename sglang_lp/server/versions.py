"""Which SGLang versions the plugin knows, and everything that differs between them."""

from __future__ import annotations

import logging
import os
from functools import cache
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from sglang_lp.errors import InstallError

__all__ = [
    "ALLOW_UNTESTED",
    "NEWEST",
    "OLDEST",
    "abort_unstarted",
    "check_version",
    "committed_length",
    "diffusion_algorithm",
    "drafts_are_tested",
    "has_sampling_mask",
    "optional",
    "resolved",
    "untested",
    "writes_metrics",
]

#: The first version whose sampling can be delayed (``SGLANG_ENABLE_DELAY_SAMPLE``).
OLDEST = "0.5.18"
#: The newest version that the tests ran on.
NEWEST = "0.5.23"
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


def has_sampling_mask() -> bool:
    """Tell whether this SGLang has ``return_sampling_mask`` (from 0.5.19 on)."""
    from sglang.srt.sampling import custom_logit_processor

    return hasattr(custom_logit_processor, "supports_sampling_mask")


def drafts_are_tested() -> bool:
    """Tell whether the tests run speculative decoding on this SGLang: not on 0.5.18.

    Its drafts do not run without a GPU.
    """
    return version("sglang") != "0.5.18"


def optional(*targets: str) -> list[str]:
    """Return those of SGLang's functions that this version has.

    Args:
        *targets: Each as ``module.function`` or ``module.Class.function``.
    """
    found = []
    for target in targets:
        try:
            resolve_name(target)
        except (AttributeError, ImportError):
            continue
        found.append(target)
    return found


def abort_unstarted(req: Any, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
    """End a request that the scheduler has just made.

    Args:
        req: SGLang's request.
        message: For the client.
        status: Of the answer.
    """
    if "status_code" in signature(req.set_finish_with_abort).parameters:
        blame_client = status is HTTPStatus.BAD_REQUEST
        kind = "BadRequestError" if blame_client else "InternalServerError"
        req.set_finish_with_abort(message, status, kind)
    else:  # SGLang 0.5.18: that is all it ever says
        req.set_finish_with_abort(message)


def committed_length(req: Any) -> int | None:
    """Return how many tokens of a request went through the model, this step's included.

    SGLang 0.5.18 keeps it in the request itself, beside a ``kv`` that has none; from 0.5.19 on it
    is ``req.kv.kv_committed_len``. ``None`` for a request without that bookkeeping.
    """
    on_request: int | None = getattr(req, "kv_committed_len", None)
    return getattr(getattr(req, "kv", None), "kv_committed_len", on_request)


def diffusion_algorithm(server_args: Any) -> str | None:
    """Return the name of the server's diffusion language model algorithm, or ``None``."""
    name = getattr(server_args, "dllm_algorithm", None)
    return None if name is None else str(name)


def resolved(server_args: Any) -> Any:
    """Return the arguments with what SGLang decided from them, as far as it has."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:  # SGLang 0.5.18 writes its decisions over the arguments
        return server_args
    return resolving_view(server_args)


def writes_metrics(scheduler: Any) -> bool:
    """Tell whether this scheduler counts, and not another rank of the same requests."""
    reporter = getattr(scheduler, "metrics_reporter", scheduler)  # SGLang 0.5.18: it itself
    return bool(getattr(reporter, "current_scheduler_metrics_enabled", True))
