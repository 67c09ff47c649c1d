"""The SGLang plugin: everything that touches SGLang's internals stands in this sub-package.

SGLang calls :func:`install` in each of its processes (entry point ``sglang.srt.plugins``). The
policy file is named by the environment variable ``SGLANG_LP_POLICY``; without it the built-ins
and SGLang's own classes are allowed, the latter run by this toolkit's implementation.
"""

from sglang_lp.server.install import POLICY_VARIABLE, install, status

__all__ = ["POLICY_VARIABLE", "install", "status"]
