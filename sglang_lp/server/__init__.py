"""The SGLang plugin: everything that touches SGLang's internals stands in this sub-package.

SGLang calls :func:`install` in each of its processes (entry point ``sglang.srt.plugins``). The
policy file is named by the environment variable ``SGLANG_LP_POLICY``; without it the built-ins
and SGLang's own classes are allowed, the latter run by this toolkit's implementation.
"""

from __future__ import annotations

import sys

__all__ = ["install"]


def install() -> None:
    """Put the guard in place in this process, or end it.

    SGLang logs whatever ``Exception`` a plugin raises, while it is imported too, and serves
    without it. So nothing is imported before this function, and what leaves it is not one.

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
