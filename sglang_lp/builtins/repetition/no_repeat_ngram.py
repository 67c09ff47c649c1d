"""No n-gram twice within a sliding window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.builtins.repetition.ngram_window import CountedTokens, DraftedWindow, Window
from sglang_lp.params import PositiveInt, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: An n-gram of the output is kept as its bytes, so that it is found exactly.
NgramSize = Annotated[int, Meta(ge=1, le=256)]

#: Most tokens that may come before a sleeping request reads them: it bounds the work of a step in
#: which many rows wake (benchmarks/cost, ngram-30-90).
_LONGEST_SLEEP = 32


class Scope(StrEnum):
    """Which tokens of a request count."""

    ALL = "all"
    OUTPUT = "output"


class OcrPreset(StrEnum):
    """A model, and a kind of document."""

    DEEPSEEK_OCR = "deepseek-ocr"
    DEEPSEEK_OCR_PDF = "deepseek-ocr-pdf"
    DEEPSEEK_OCR_EVAL = "deepseek-ocr-eval"
    DEEPSEEK_OCR_2 = "deepseek-ocr-2"
    DEEPSEEK_OCR_2_PDF = "deepseek-ocr-2-pdf"
    DEEPSEEK_OCR_2_EVAL = "deepseek-ocr-2-eval"
    UNLIMITED_OCR = "unlimited-ocr"
    UNLIMITED_OCR_MULTI_PAGE = "unlimited-ocr-multi-page"


class _OcrSetting(NamedTuple):
    """The parameters of a preset, under their own names."""

    ngram_size: int
    window_size: int
    whitelist_token_ids: frozenset[int]


#: ``<td>`` and ``</td>`` of both DeepSeek-OCR tokenizers: tables repeat them.
_CELLS = frozenset({128821, 128822})

#: The scripts run_dpsk_ocr_image.py, run_dpsk_ocr_pdf.py and run_dpsk_ocr_eval_batch.py of
#: DeepSeek-OCR and their counterparts of DeepSeek-OCR-2; infer.py of Unlimited-OCR, for
#: one page and for several.
_SETTINGS = {
    OcrPreset.DEEPSEEK_OCR: _OcrSetting(30, 90, _CELLS),
    OcrPreset.DEEPSEEK_OCR_PDF: _OcrSetting(20, 50, _CELLS),
    OcrPreset.DEEPSEEK_OCR_EVAL: _OcrSetting(40, 90, _CELLS),
    OcrPreset.DEEPSEEK_OCR_2: _OcrSetting(20, 90, _CELLS),
    OcrPreset.DEEPSEEK_OCR_2_PDF: _OcrSetting(20, 50, _CELLS),
    OcrPreset.DEEPSEEK_OCR_2_EVAL: _OcrSetting(40, 90, _CELLS),
    OcrPreset.UNLIMITED_OCR: _OcrSetting(35, 128, frozenset()),
    OcrPreset.UNLIMITED_OCR_MULTI_PAGE: _OcrSetting(35, 1024, frozenset()),
}


class DeepseekOCRNoRepeatNGramLogitProcessor(LogitProcessor):
    """Ban every token that would repeat an n-gram of the last ``window_size`` tokens.

    The sizes of n-grams and window are given, or are those published for an OCR model
    (``preset``). With ``scope="all"`` prompt and output count, as in SGLang; with
    ``scope="output"`` only generated tokens count, as in DeepSeek's own code.

    Given the same history, it has the same effect as SGLang 0.5.23's class of this name, with two
    exceptions:

    - parameters that cannot work are refused instead of ignored;
    - n-grams of more than 256 tokens are refused.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {"preset": "deepseek-ocr"}
    reads_prompt = True

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            ngram_size: Tokens per n-gram, 1 to 256. Required without a preset.
            window_size: Tokens to look back over, at least ``ngram_size``. Required without a
                preset.
            whitelist_token_ids: Tokens that are never banned.
            preset: Published settings, in place of those parameters that are left out:
                ``"deepseek-ocr"`` and ``"deepseek-ocr-2"`` for an image, with ``-pdf`` and
                ``-eval`` for their other scripts; ``"unlimited-ocr"`` for one page, with
                ``-multi-page`` for several.
            scope: Which tokens count: ``"all"`` or ``"output"``.
        """

        ngram_size: NgramSize | None = None
        window_size: PositiveInt | None = None
        whitelist_token_ids: TokenIdSet | None = None
        preset: OcrPreset | None = None
        scope: Scope = Scope.ALL

        def __post_init__(self) -> None:
            """Fill in the preset, and refuse a window in which no n-gram fits."""
            if self.preset is not None:
                for name, value in _SETTINGS[self.preset]._asdict().items():
                    if getattr(self, name) is None:
                        msgspec.structs.force_setattr(self, name, value)
            if self.ngram_size is None or self.window_size is None:
                name = "ngram_size" if self.ngram_size is None else "window_size"
                raise ValueError(f"{name}: required, because no preset is given")
            if self.window_size < self.ngram_size:
                raise ValueError(
                    f"window_size: expected at least ngram_size, got {self.window_size} for "
                    f"{self.ngram_size}-grams, which would never ban anything"
                )

    @classmethod
    def read_of_prompt(cls, params: Any, length: int) -> int:
        """Return how much of a prompt is in the window, if the prompt counts."""
        return min(length, params.window_size) if params.scope == Scope.ALL else 0

    def start(self, request: Request) -> Window:
        """Index the part of the prompt that is in the window, if the prompt counts."""
        params: Any = request.params
        whitelist = params.whitelist_token_ids or frozenset()
        prompt_ids = counted(request).prompt_ids
        return Window(params.ngram_size, params.window_size, whitelist, prompt_ids)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Slide the window."""
        request.state.slide(counted(request), token_ids)

    def fork(self, request: Request) -> DraftedWindow:
        """Return a window that shares the n-grams of the request's."""
        return request.state.fork(counted(request))  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the tokens that would repeat an n-gram, or sleep until one can."""
        window, history = request.state, counted(request)
        due = window.due - len(history.prompt_ids)
        if request.position < due:
            edits.wake_at(min(due, request.position + _LONGEST_SLEEP))
            return
        for token_ids in window.banned(history, edits.vocab_size):
            edits.ban(token_ids)

    def explain(self, request: Request) -> str:
        """Say how many tokens would be repeated."""
        params = request.params
        return (
            f"each would repeat {params.ngram_size} tokens in a row of the last "
            f"{params.window_size}"
        )


def counted(request: Request) -> Request | CountedTokens:
    """Return the history that counts: the request's, or the request's without its prompt."""
    return request if request.params.scope == Scope.ALL else CountedTokens((), request.output_ids)
