"""Published settings of the n-gram rule for OCR models."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["SETTINGS", "Preset", "Setting"]


class Preset(StrEnum):
    """A model, and what it reads."""

    DEEPSEEK_OCR = "deepseek-ocr"
    DEEPSEEK_OCR_PDF = "deepseek-ocr-pdf"
    DEEPSEEK_OCR_EVAL = "deepseek-ocr-eval"
    DEEPSEEK_OCR_2 = "deepseek-ocr-2"
    DEEPSEEK_OCR_2_PDF = "deepseek-ocr-2-pdf"
    DEEPSEEK_OCR_2_EVAL = "deepseek-ocr-2-eval"
    UNLIMITED_OCR = "unlimited-ocr"
    UNLIMITED_OCR_MULTI_PAGE = "unlimited-ocr-multi-page"


class Setting(NamedTuple):
    """What a preset stands for; as the parameters of the same names."""

    ngram_size: int
    window_size: int
    whitelist_token_ids: frozenset[int]


#: ``<td>`` and ``</td>`` of both DeepSeek-OCR tokenizers: tables repeat them.
_CELLS = frozenset({128821, 128822})

#: The scripts run_dpsk_ocr_image.py, run_dpsk_ocr_pdf.py and run_dpsk_ocr_eval_batch.py of
#: DeepSeek-OCR and their counterparts of DeepSeek-OCR-2; infer.py of Unlimited-OCR, for
#: one page and for several.
SETTINGS = {
    Preset.DEEPSEEK_OCR: Setting(30, 90, _CELLS),
    Preset.DEEPSEEK_OCR_PDF: Setting(20, 50, _CELLS),
    Preset.DEEPSEEK_OCR_EVAL: Setting(40, 90, _CELLS),
    Preset.DEEPSEEK_OCR_2: Setting(20, 90, _CELLS),
    Preset.DEEPSEEK_OCR_2_PDF: Setting(20, 50, _CELLS),
    Preset.DEEPSEEK_OCR_2_EVAL: Setting(40, 90, _CELLS),
    Preset.UNLIMITED_OCR: Setting(35, 128, frozenset()),
    Preset.UNLIMITED_OCR_MULTI_PAGE: Setting(35, 1024, frozenset()),
}
