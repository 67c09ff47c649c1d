"""An answer that is one of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.builtins.sequences import (
    KeptIds,
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
    from sglang_lp._engine.ids import Ids
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Choices:
    """The choices of a request, the same for all its copies.

    Attributes:
        tree: Their automaton, which never goes back.
    """

    __slots__ = ("_ends", "_kept", "tree")

    def __init__(
        self, token_ids: tuple[int, ...], lengths: tuple[int, ...], ends: tuple[int, ...]
    ) -> None:
        self.tree = automaton_of(token_ids, lengths)
        self._ends = ends
        self._kept = KeptIds()

    def allowed(self, state: int) -> Ids | list[int]:
        """Return the tokens that continue a choice after a state, or end it."""
        return self._kept.of(state, self._allowed)

    def _allowed(self, state: int) -> Iterator[int]:
        yield from self.tree.children[state]
        if self.tree.complete[state]:
            yield from self._ends


@lru_cache(maxsize=16)
def _choices_of(
    token_ids: tuple[int, ...], lengths: tuple[int, ...], ends: tuple[int, ...]
) -> _Choices:
    """Return the choices of all requests with these parameters."""
    return _Choices(token_ids, lengths, ends)


class _Path:
    """How far into the choices the output is."""

    __slots__ = ("choices", "done", "state")

    def __init__(self, choices: _Choices) -> None:
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
        def choices(self) -> _Choices:
            """The tree of the choices."""
            return _choices_of(self.token_ids, self.lengths, self.eos_token_ids or ())

    def start(self, request: Request) -> _Path:
        """Begin at the root of the tree."""
        return _Path(request.params.choices)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Go down the tree."""
        path, eos = request.state, request.params.eos_token_ids
        tree = path.choices.tree
        for token_id in token_ids:
            if path.done:
                return
            after = tree.children[path.state].get(token_id)
            if after is not None:
                path.state = after
                path.done = eos is None and tree.complete[after]
            elif eos is not None and token_id in eos and tree.complete[path.state]:
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
        path = request.state
        if path.done:
            edits.rest()
        else:
            edits.allow_only(path.choices.allowed(path.state))
