"""The operator's decisions: the classes that may run, defaults, ceilings, profiles and effort.

At start-up, the processors that a server allows:

- ``file``: the policy file; its tables are in ``adapt``, its sections in ``decisions``.
- ``allowing``: the allow list for :mod:`sglang_lp.trust`. ``classes`` imports and checks each
  class, ``adapt`` those of other engines; ``stock`` names SGLang's own.
- ``chosen``: the processors of defaults, profiles and ``[[always]]``.

At both gates, the processors that a request runs:

- ``rules``: the order in which the decisions are applied.
- ``links``: the request's processors while the decisions are applied.
- ``ceilings``: the largest number that it may give a parameter.
- ``thinking``: its thinking budget.
"""

from sglang_lp.policy.file import Policy
from sglang_lp.policy.rules import Asked, Decided, Rules

__all__ = ["Asked", "Decided", "Policy", "Rules"]
