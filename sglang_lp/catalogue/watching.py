"""A thread that takes up new versions of catalogues while a process serves."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang_lp.catalogue.opened import Catalogues, Renewal

__all__ = ["watch"]

logger = logging.getLogger(__name__)

#: Seconds between two looks. A new file is opened at the second look that finds it.
_EVERY = 0.2


def watch(catalogues: Catalogues, renewed: Callable[[Renewal], None], process: str) -> None:
    """Start a thread that opens new versions.

    Args:
        catalogues: The open catalogues; without any, no thread is started.
        renewed: Called in that thread for each version that was opened or refused.
        process: Name of this process in the log, where each process writes a line of its own.
    """
    if catalogues.now:
        arguments = catalogues, renewed, f"{process} process, pid {os.getpid()}"
        threading.Thread(target=_run, args=arguments, name="catalogues", daemon=True).start()


def _run(catalogues: Catalogues, renewed: Callable[[Renewal], None], process: str) -> None:
    while True:
        time.sleep(_EVERY)
        try:
            for one in catalogues.renew():
                if one.problem is None:
                    found = catalogues.now[one.name].index
                    logger.info("catalogues.%s: takes up %r (%s)", one.name, found, process)
                else:
                    logger.error("%s; the version before it stays (%s)", one.problem, process)
                renewed(one)
        except Exception:
            logger.exception("looking for new versions of catalogues failed")
