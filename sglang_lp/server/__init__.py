"""The SGLang plugin: all code that touches SGLang's internals is in this sub-package.

SGLang calls :func:`install` in each of its processes (entry point ``sglang.srt.plugins``). The
policy file is named by the environment variable ``SGLANG_LP_POLICY``; without it the built-ins
and SGLang's own classes are allowed, the latter run by this toolkit's implementation.
"""

from __future__ import annotations

import sys

__all__ = ["install"]


def install() -> None:
    """Put the guard in place in this process, or end it.

    SGLang logs any ``Exception`` that a plugin raises, also at import, and serves without the
    plugin. So no module is imported before this function, and it raises only ``SystemExit``.

    Raises:
        SystemExit: The guard cannot be put in place.
    """
    try:
        from sglang_lp.server.startup.fail_closed import shut

        shut()  # also for a program that catches what is raised here, and goes on
        from sglang_lp.server.startup.hooks import put_in_place

        put_in_place()
    except Exception as error:
        sys.stderr.write(f"sglang-lp: this process does not serve: {error}\n")
        raise SystemExit(78) from error  # EX_CONFIG
