"""An answer that is one of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.builtins.sequences import (
    Automaton,
    Lengths,
    SequenceIds,
    automaton_of,
    check_lengths,
    split,
)
from sglang_lp.errors import ProcessorFault
from sglang_lp.params import FewTokenIds, Parameters
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Path:
    """How far into the choices the output is."""

    __slots__ = ("choices", "done", "state")

    def __init__(self, choices: Automaton) -> None:
        self.choices = choices
        self.state = 0
        #: Whether a choice was made and, if there are end tokens, ended.
        self.done = False


class ChoiceLogitProcessor(LogitProcessor):
    """Let the model generate exactly one of several token sequences.

    At every step the tokens that continue one of the choices keep their logits and all others
    are set to ``-inf``, so that the model's own probabilities choose. After a choice only
    ``eos_token_ids`` may come; without them the model goes on by itself.
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {
        "token_ids": [9642, 2822, 36, 1588],
        "lengths": [1, 1, 2],
        "eos_token_ids": [2],
    }

    class Params(Parameters, frozen=True, dict=True):
        """What a request may set.

        Attributes:
            token_ids: The ids of all choices, one choice after the other.
            lengths: For each choice its number of tokens, together as many as ``token_ids``.
            eos_token_ids: Tokens that end the answer; one of them comes after a choice. Left out:
                the answer goes on, and no choice may be a prefix of another.
        """

        renamed: ClassVar[Mapping[str, str]] = {"eos_token_id": "eos_token_ids"}

        token_ids: SequenceIds
        lengths: Lengths
        eos_token_ids: FewTokenIds | None = None

        def __post_init__(self) -> None:
            """Refuse lengths that do not fit, and a choice that others begin with unmarked."""
            check_lengths(self.token_ids, self.lengths)
            if self.eos_token_ids is None:
                self._check_prefixes()

        def _check_prefixes(self) -> None:
            """Refuse a choice that is a prefix of another."""
            # Sorted, what begins with a choice comes right after it.
            for first, after in pairwise(sorted(map(tuple, split(self.token_ids, self.lengths)))):
                if first == after[: len(first)] and len(first) < len(after):
                    raise ValueError(
                        "eos_token_ids: required, because one choice is a prefix of another"
                    )

        @cached_property
        def choices(self) -> Automaton:
            """The tree of the choices."""
            return automaton_of(self.token_ids, self.lengths)

    @classmethod
    def fit_params(cls, params: Any, tokenizer: Any, vocab_size: int | None = None) -> Any:
        """Build the tree now, while no step waits for it."""
        _ = params.choices
        return super().fit_params(params, tokenizer, vocab_size)

    def start(self, request: Request) -> _Path:
        """Begin at the root of the tree."""
        return _Path(request.params.choices)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Go down the tree."""
        path, eos = request.state, request.params.eos_token_ids
        for token_id in token_ids:
            if path.done:
                return
            after = path.choices.children[path.state].get(token_id)
            if after is not None:
                path.state = after
                path.done = eos is None and path.choices.complete[after]
            elif eos is not None and token_id in eos and path.choices.complete[path.state]:
                path.done = True
            else:
                raise ProcessorFault(
                    f"token {token_id} was generated, which is none of the choices"
                )

    def fork(self, request: Request) -> _Path:
        """Copy how far the output is."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Allow what continues a choice, or ends it."""
        path, eos = request.state, request.params.eos_token_ids
        if path.done:
            edits.rest()
            return
        tokens = [*path.choices.children[path.state]]
        if path.choices.complete[path.state]:
            tokens += eos
        edits.allow_only(tokens)
