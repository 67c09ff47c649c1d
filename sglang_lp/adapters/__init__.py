"""Bring your own: processors written for vLLM, Transformers and Dynamo, run unmodified.

One file for each interface. Each feeds the foreign class the exact history of its requests, keeps
its state with them, and ends a request that it fails, and no other.
"""

from __future__ import annotations

from sglang_lp.adapters.adapted import AdaptedProcessor
from sglang_lp.adapters.dynamo import ForcedTokenSequenceSpec
from sglang_lp.adapters.engine_settings import EngineSettings
from sglang_lp.adapters.loading import GROUPS, INTERFACES, adapt, find_entry_points, load
from sglang_lp.adapters.sglang_class import as_processor

__all__ = [
    "GROUPS",
    "INTERFACES",
    "AdaptedProcessor",
    "EngineSettings",
    "ForcedTokenSequenceSpec",
    "adapt",
    "as_processor",
    "find_entry_points",
    "load",
]
