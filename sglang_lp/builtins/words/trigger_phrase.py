"""A phrase after a trigger, or before the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.params import FewTokenIds, ForcedText, NonEmptyTokenIds, PositiveInt, Text, replaced
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for
from sglang_lp.text.automaton import SequenceIds
from sglang_lp.text.encoding import check_texts, forced_text
from sglang_lp.text.triggers import text_trigger, token_trigger
from sglang_lp.text.vocabulary import byte_runs_of

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.byte_runs import ByteRuns
    from sglang_lp.text.triggers import Trigger

#: Most tokens that may come before a sleeping request reads them: it bounds the work of a step in
#: which many rows wake.
_LONGEST_SLEEP = 128


class _TriggerProgress:
    """How far the trigger and the phrase have come."""

    __slots__ = ("begun", "is_open", "runs", "said", "times", "trigger", "unsettled")

    def __init__(self, trigger: Trigger, runs: ByteRuns) -> None:
        self.trigger = trigger
        #: Byte runs of the served model, and the unfinished end of the last run.
        self.runs = runs
        self.unsettled = b""
        #: Whether the phrase counts only if the run of bytes that it ends with goes no further.
        self.is_open = False
        #: The part of the trigger that has come.
        self.begun = trigger.start
        #: How many tokens of the phrase were generated, or -1 outside of it.
        self.said = -1
        #: How many times the phrase was begun.
        self.times = 0

    def follow(self, token_id: int) -> None:
        """Follow the run of bytes after a generated token, if the vocabulary has runs."""
        said = self.runs.joined(self.unsettled, token_id)
        self.is_open &= said == self.unsettled
        self.unsettled = self.runs.unsettled(said)

    def is_early(self, phrase: Sequence[int]) -> bool:
        """Tell whether a run of bytes must end first, because it would spoil the phrase."""
        return bool(self.unsettled) and self.said <= 0 and phrase[0] in self.runs.ids


class TriggerPhraseLogitProcessor(LogitProcessor):
    """Force a phrase after each trigger that the model generates, or before it ends its answer.

    With ``trigger``, a text as the client gets it, or with ``trigger_token_ids``, the phrase
    follows right after the token that completes the trigger. Only generated tokens count. The
    phrase is no part of a trigger, nor is the rest of the token that completes a trigger.

    Without a trigger the phrase comes in place of the first token that ends the answer. Until then
    the first token of the phrase gets the sum of the end tokens' probabilities in place of its own,
    and the end tokens get none. Let the phrase begin with a token that answers do not use.

    After the phrase the model continues freely.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    example: ClassVar[Mapping[str, Any]] = {"trigger": "</think>", "phrase": "\nIn short:"}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            phrase: The text to force, of up to 4,096 characters. Give ``phrase`` or
                ``phrase_token_ids``.
            phrase_token_ids: The tokens to force, one after the other.
            trigger: The text to wait for, of up to 256 characters, whichever tokens spell it.
            trigger_token_ids: The tokens to wait for, one after the other.
            before_token_ids: Without a trigger, the tokens that the phrase comes in place of. Left
                out: the end tokens of the served model.
            max_times: Most times that the phrase follows a trigger.
        """

        phrase: ForcedText | None = None
        phrase_token_ids: NonEmptyTokenIds | None = None
        trigger: Text | None = None
        trigger_token_ids: SequenceIds | None = None
        before_token_ids: FewTokenIds | None = None
        max_times: PositiveInt = 1

        def __post_init__(self) -> None:
            """Refuse no phrase or two, and parameters that do not go together."""
            if (self.phrase is None) == (self.phrase_token_ids is None):
                raise ValueError("phrase: expected either phrase or phrase_token_ids")
            names = ("trigger", "trigger_token_ids", "before_token_ids")
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"{given[1]}: given together with {given[0]}; give one")
            check_texts("phrase", [self.phrase or ""])
            check_texts("trigger", [self.trigger or ""])
            if not self.has_trigger and self.max_times > 1:
                raise ValueError("max_times: expected 1 without a trigger: an answer ends once")
            if (
                self.before_token_ids is not None
                and self.phrase_token_ids is not None
                and self.phrase_token_ids[0] in self.before_token_ids
            ):
                raise ValueError(
                    "before_token_ids: expected other tokens than the first of the phrase, which "
                    f"is {self.phrase_token_ids[0]}"
                )

        @property
        def has_trigger(self) -> bool:
            """Whether the phrase follows a trigger."""
            return self.trigger is not None or self.trigger_token_ids is not None

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Turn the phrase into tokens of the served model, and name its end tokens."""
        phrase, before = params.phrase_token_ids, params.before_token_ids
        if phrase is None:
            phrase = forced_text(
                cls.__name__, "phrase", served.tokenizer, params.phrase, served.vocab_size
            )
        if not params.has_trigger:
            before = ends_for(cls.__name__, "before_token_ids", before, served)
        fitted = replaced(
            params, cls.__name__, phrase=None, phrase_token_ids=phrase, before_token_ids=before
        )
        cls._trigger(fitted, served.tokenizer)  # made now, while no step waits for it
        return fitted

    @classmethod
    def _trigger(cls, params: Any, tokenizer: Any) -> Trigger:
        """Return the compiled trigger."""
        if params.trigger is not None:
            return text_trigger(cls.__name__, "trigger", tokenizer, params.trigger)
        # Without a trigger the first token of the phrase is its own.
        return token_trigger(params.trigger_token_ids or params.phrase_token_ids[:1])

    def serving(self, params: Any) -> Self:
        """Return a processor that knows whether it pools: only a phrase without a trigger does."""
        made = type(self)()
        made.exclusion_only = params.has_trigger
        return made

    def start(self, request: Request) -> _TriggerProgress:
        """Begin outside the trigger."""
        runs = byte_runs_of(request.tokenizer)
        return _TriggerProgress(self._trigger(request.params, request.tokenizer), runs)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the trigger, or the phrase while it is being forced."""
        progress, params = request.state, request.params
        phrase, trigger = params.phrase_token_ids, progress.trigger
        has_runs = bool(progress.runs.ids)
        for token_id in token_ids:
            is_early = has_runs and progress.is_early(phrase)
            if has_runs:
                progress.follow(token_id)
            if progress.said >= 0:
                progress.said += not is_early
            elif progress.times < params.max_times:
                progress.begun = trigger.step(progress.begun, token_id)
                if progress.begun is None:
                    progress.begun = trigger.start
                    progress.times += 1
                    progress.said = 0 if params.has_trigger else 1
            if progress.said == len(phrase):
                progress.said = -1
                progress.is_open = bool(progress.runs.corrupting(phrase))

    def fork(self, request: Request) -> _TriggerProgress:
        """Copy the state; the trigger is shared."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the next token of the phrase."""
        progress, params = request.state, request.params
        phrase = params.phrase_token_ids
        is_early = progress.is_early(phrase)
        if progress.is_open:
            edits.ban(progress.runs.listed)
        elif is_early and progress.said == 0:
            edits.ban(progress.runs.leaving_open(edits.vocab_size))
        elif progress.said >= 0:
            edits.force(phrase[progress.said])
        elif progress.times == params.max_times:
            edits.rest()
        elif params.has_trigger:
            # The trigger cannot be complete earlier. A long sleep would make one step read much.
            lacking = progress.trigger.lacking(progress.begun)
            edits.wake_at(request.position + min(lacking, _LONGEST_SLEEP))
        elif is_early:
            edits.ban([*params.before_token_ids, phrase[0]])
        else:
            edits.pool(params.before_token_ids, phrase[0])

    def foresee(self, request: Request) -> Sequence[int]:
        """Name the rest of the phrase."""
        phrase, progress = request.params.phrase_token_ids, request.state
        return () if progress.said < 0 or progress.is_early(phrase) else phrase[progress.said :]

    def explain(self, request: Request) -> str:
        """Say which token of the phrase comes next."""
        progress, params = request.state, request.params
        if progress.said >= 0:
            return f"token {progress.said + 1} of {len(params.phrase_token_ids)} of the phrase"
        return "the phrase comes before the end"
