"""What the operator decides: defaults, ceilings, profiles, effort, and what every request gets.

``budget`` has the order in which thinking budgets count, ``links`` the processors of a request
while they are decided on, ``ceilings`` the numbers that they may not exceed, and ``rules``
applies a policy to a request.
"""

from sglang_lp.policy.rules import Asked, Decided, Rules

__all__ = ["Asked", "Decided", "Rules"]
