"""What the operator decides: the classes that may run, defaults, ceilings, profiles and effort.

``file`` reads the policy file, with the tables of ``adapt`` and the sections of ``decisions``.
``allowing`` imports the classes that it allows, and hands them to :mod:`sglang_lp.trust`.
``rules`` applies its decisions to a request: ``links`` are the request's processors meanwhile,
``ceilings`` the numbers that they may not exceed, ``thinking`` the order in which thinking budgets
count.
"""

from sglang_lp.policy.file import Policy
from sglang_lp.policy.rules import Asked, Decided, Rules

__all__ = ["Asked", "Decided", "Policy", "Rules"]
