"""Published settings of the rule against loops."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["SETTINGS", "Preset", "Setting"]


class Preset(StrEnum):
    """What a model writes when it loops."""

    REASONING = "reasoning"
    CODE = "code"
    STRUCTURED_OUTPUT = "structured-output"


class Setting(NamedTuple):
    """What a preset stands for; as the parameters of the same names."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


#: The configuration that vllm-project/vllm pull request 52677 documents for loops in reasoning;
#: the default profile of ggml-org/llama.cpp pull request 26039, made for coding agents that repeat
#: whole blocks; and what vllm-project/vllm pull request 40097 sets for structured output.
SETTINGS = {
    Preset.REASONING: Setting(128, 4, 4),
    Preset.CODE: Setting(1024, 16, 4),
    Preset.STRUCTURED_OUTPUT: Setting(20, 1, 3),
}
