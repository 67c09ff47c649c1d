"""The forms of built-ins, by class. Imports numba, so a server imports it when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.builtins.repetition.dry import DRYLogitProcessor
from sglang_lp.builtins.repetition.dry_form import DryForm
from sglang_lp.builtins.repetition.loop_breaker import LoopBreakerLogitProcessor
from sglang_lp.builtins.repetition.loop_breaker_form import LoopBreakerForm
from sglang_lp.builtins.repetition.no_repeat_ngram import DeepseekOCRNoRepeatNGramLogitProcessor
from sglang_lp.builtins.repetition.no_repeat_ngram_form import NoRepeatNGramForm
from sglang_lp.builtins.thinking import families
from sglang_lp.builtins.thinking.budget import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.budget_form import BudgetForm
from sglang_lp.builtins.tokens.gen_length import GenLengthLogitProcessor
from sglang_lp.builtins.tokens.gen_length_form import GenLengthForm
from sglang_lp.builtins.tokens.scheduled_bias import ScheduledBiasLogitProcessor
from sglang_lp.builtins.tokens.scheduled_bias_form import ScheduledBiasForm
from sglang_lp.builtins.words.bad_words import BadWordsLogitProcessor
from sglang_lp.builtins.words.bad_words_form import BadWordsForm
from sglang_lp.builtins.words.forced_sequence import ForcedSequenceLogitProcessor
from sglang_lp.builtins.words.forced_sequence_form import ForcedSequenceForm
from sglang_lp.builtins.words.forced_words import ForcedWordsLogitProcessor
from sglang_lp.builtins.words.forced_words_form import ForcedWordsForm
from sglang_lp.builtins.words.tool_calls import ToolCallLimitLogitProcessor
from sglang_lp.builtins.words.tool_calls_form import ToolCallLimitForm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sglang_lp.forms.form import Form
    from sglang_lp.processor import LogitProcessor

__all__ = ["FORMS"]

#: The class that asks the tokenizer, and those of model families.
_BUDGETS = [
    kind
    for kind in vars(families).values()
    if isinstance(kind, type) and issubclass(kind, ThinkingBudgetLogitProcessor)
]

FORMS: Mapping[type[LogitProcessor], type[Form]] = {
    BadWordsLogitProcessor: BadWordsForm,
    DRYLogitProcessor: DryForm,
    DeepseekOCRNoRepeatNGramLogitProcessor: NoRepeatNGramForm,
    ForcedSequenceLogitProcessor: ForcedSequenceForm,
    ForcedWordsLogitProcessor: ForcedWordsForm,
    GenLengthLogitProcessor: GenLengthForm,
    LoopBreakerLogitProcessor: LoopBreakerForm,
    ScheduledBiasLogitProcessor: ScheduledBiasForm,
    ToolCallLimitLogitProcessor: ToolCallLimitForm,
    **dict.fromkeys(_BUDGETS, BudgetForm),
}
