"""A phrase that follows a trigger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp.builtins._sequences import Automaton
from sglang_lp.params import NonEmptyTokenIds, Parameters, PositiveInt
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Progress:
    """What was seen of the trigger, and what was said of the phrase."""

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
    """Force a phrase right after each time that the model has generated a trigger.

    Only generated tokens count; the tokens of the phrase itself are no part of a trigger. After
    the phrase the model goes on by itself.
    """

    __module__ = "sglang_lp.builtins"

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            trigger_token_ids: The tokens to wait for, one after the other, at least one.
            phrase_token_ids: The tokens to force then, at least one.
            max_times: How many times at most.
        """

        trigger_token_ids: NonEmptyTokenIds
        phrase_token_ids: NonEmptyTokenIds
        max_times: PositiveInt = 1

    def start(self, request: Request) -> _Progress:
        """Build the automaton of the trigger."""
        return _Progress(Automaton([request.params.trigger_token_ids]))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Look for the trigger, or note what was said of the phrase."""
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
                    progress.said = 0

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the token of the phrase whose turn it is."""
        progress = request.state
        if progress.said >= 0:
            edits.force(request.params.phrase_token_ids[progress.said])
        elif progress.times == request.params.max_times:
            edits.rest()
        else:
            # Not before the trigger can be complete again.
            missing = len(request.params.trigger_token_ids) - progress.state
            edits.wake_at(request.position + missing)
