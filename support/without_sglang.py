"""A plugin for pytest, ``-p support.without_sglang``: what imports SGLang fails."""

import sys

sys.modules["sglang"] = None  # type: ignore[assignment] # how Python is told to find none
