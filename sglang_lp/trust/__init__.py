"""The trust boundary: a request chooses among what the operator allowed, and nothing else."""

from __future__ import annotations

from sglang_lp.policy.file import Limits, Pin, Policy
from sglang_lp.trust.audit import Audit, Gate
from sglang_lp.trust.verifier import Allowed, Verifier

__all__ = ["Allowed", "Audit", "Gate", "Limits", "Pin", "Policy", "Verifier"]
