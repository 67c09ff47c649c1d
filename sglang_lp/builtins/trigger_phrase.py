"""A phrase after a trigger, or before the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.builtins.sequences import Automaton, SequenceIds, automaton_of
from sglang_lp.params import FewTokenIds, NonEmptyTokenIds, Parameters, PositiveInt
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: Tokens that may come before they are read: 100 rows that wake at once read them in 10 ms.
_LONGEST_SLEEP = 128


class _Progress:
    """How far the trigger and the phrase have come."""

    __slots__ = ("said", "state", "times", "trigger")

    def __init__(self, trigger: Automaton) -> None:
        self.trigger = trigger
        #: How many tokens of the trigger the output ends with.
        self.state = 0
        #: How many tokens of the phrase were generated, or -1 outside of it.
        self.said = -1
        #: How many times the phrase was begun.
        self.times = 0


class TriggerPhraseLogitProcessor(LogitProcessor):
    """Force a phrase after each trigger that the model generates, or before it ends its answer.

    With ``trigger_token_ids`` the phrase follows right after them. Only generated tokens count;
    the tokens of the phrase itself are no part of a trigger.

    With ``before_token_ids``, the tokens that end an answer, the phrase comes in place of the first
    of them: until then the first token of the phrase gets the sum of their probabilities in place
    of its own, and they get none. So let the phrase begin with a token that answers do not use.

    After the phrase the model continues by itself.
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {
        "trigger_token_ids": [1234],
        "phrase_token_ids": [567, 890],
    }

    class Params(Parameters, frozen=True, dict=True):
        """What a request may set.

        Attributes:
            phrase_token_ids: The tokens to force, one after the other.
            trigger_token_ids: The tokens to wait for, one after the other. Either these or
                ``before_token_ids``.
            before_token_ids: The tokens that the phrase comes in place of.
            max_times: Most times that the phrase follows a trigger.
        """

        phrase_token_ids: NonEmptyTokenIds
        trigger_token_ids: SequenceIds | None = None
        before_token_ids: FewTokenIds | None = None
        max_times: PositiveInt = 1

        def __post_init__(self) -> None:
            """Refuse a phrase with no trigger or end to follow, or with both."""
            if (self.trigger_token_ids is None) == (self.before_token_ids is None):
                raise ValueError("trigger_token_ids: expected either these or before_token_ids")
            if self.before_token_ids is not None:
                if self.phrase_token_ids[0] in self.before_token_ids:
                    raise ValueError(
                        "before_token_ids: expected other tokens than the first of the phrase, "
                        f"which is {self.phrase_token_ids[0]}"
                    )
                if self.max_times > 1:
                    raise ValueError(
                        "max_times: expected 1 with before_token_ids: an answer ends once"
                    )

        @cached_property
        def trigger(self) -> Automaton:
            """The automaton of the trigger; the first token of the phrase may be its own."""
            token_ids = self.trigger_token_ids or self.phrase_token_ids[:1]
            return automaton_of(token_ids, (len(token_ids),))

    def start(self, request: Request) -> _Progress:
        """Begin outside the trigger."""
        return _Progress(request.params.trigger)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the trigger, or the phrase while it is being forced."""
        progress, params = request.state, request.params
        phrase = params.phrase_token_ids
        for token_id in token_ids:
            if progress.said >= 0:
                progress.said += 1
                if progress.said == len(phrase):
                    progress.said = -1
                continue
            progress.state = progress.trigger.step(progress.state, token_id)
            if progress.trigger.complete[progress.state]:
                progress.state = 0
                if progress.times < params.max_times:
                    progress.times += 1
                    said = 0 if params.trigger_token_ids else 1
                    progress.said = said if said < len(phrase) else -1

    def fork(self, request: Request) -> _Progress:
        """Copy how far the trigger and the phrase are."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the next token of the phrase."""
        progress, params = request.state, request.params
        if progress.said >= 0:
            edits.force(params.phrase_token_ids[progress.said])
        elif progress.times == params.max_times:
            edits.rest()
        elif params.trigger_token_ids:
            # The trigger cannot be complete earlier. Tokens are read all at once, so not too late.
            left = len(params.trigger_token_ids) - progress.state
            edits.wake_at(request.position + min(left, _LONGEST_SLEEP))
        else:
            edits.pool(params.before_token_ids, params.phrase_token_ids[0])
