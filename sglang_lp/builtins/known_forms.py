"""The forms of built-ins, by class. Imports numba, so a server imports it when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.builtins.repetition.dry import DRYLogitProcessor
from sglang_lp.builtins.repetition.dry_form import DryForm
from sglang_lp.builtins.repetition.no_repeat_ngram import DeepseekOCRNoRepeatNGramLogitProcessor
from sglang_lp.builtins.repetition.no_repeat_ngram_form import NoRepeatNGramForm
from sglang_lp.builtins.tokens.gen_length import GenLengthLogitProcessor
from sglang_lp.builtins.tokens.gen_length_form import GenLengthForm
from sglang_lp.builtins.tokens.scheduled_bias import ScheduledBiasLogitProcessor
from sglang_lp.builtins.tokens.scheduled_bias_form import ScheduledBiasForm
from sglang_lp.builtins.words.bad_words import BadWordsLogitProcessor
from sglang_lp.builtins.words.bad_words_form import BadWordsForm
from sglang_lp.builtins.words.forced_sequence import ForcedSequenceLogitProcessor
from sglang_lp.builtins.words.forced_sequence_form import ForcedSequenceForm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sglang_lp.forms.form import Form
    from sglang_lp.processor import LogitProcessor

__all__ = ["FORMS"]

FORMS: Mapping[type[LogitProcessor], type[Form]] = {
    BadWordsLogitProcessor: BadWordsForm,
    DRYLogitProcessor: DryForm,
    DeepseekOCRNoRepeatNGramLogitProcessor: NoRepeatNGramForm,
    ForcedSequenceLogitProcessor: ForcedSequenceForm,
    GenLengthLogitProcessor: GenLengthForm,
    ScheduledBiasLogitProcessor: ScheduledBiasForm,
}
