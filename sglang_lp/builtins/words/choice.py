"""An answer that is one of several."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from sglang_lp.builtins.phase import AnswerParams
from sglang_lp.caches import KeptIds, shared_by_copies
from sglang_lp.errors import Contradiction, InvalidParameter
from sglang_lp.params import FewTokenIds, Texts
from sglang_lp.processor import LogitProcessor, lasting
from sglang_lp.served_model import ends_for
from sglang_lp.text.automaton import Lengths, SequenceIds, check_lengths, split
from sglang_lp.text.choosing import MAX_BYTES, Choices, text_choices, token_choices
from sglang_lp.text.encoding import check_texts, known_ids

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel


#: Most choices of a request that are scored: each is a prompt of its own.
_MOST_SCORED = 64


class _TokensByPlace:
    """The tokens allowed at each place, cached for all requests with these choices and ends."""

    def __init__(self, choices: Choices, eos: tuple[int, ...] | None, vocab_size: int) -> None:
        self._choices, self._eos, self._vocab_size = choices, eos, vocab_size
        self._ids: KeptIds[Collection[int]] = _ids_for(choices, eos, vocab_size)  # type: ignore[arg-type]

    def at(self, place: Any) -> Collection[int]:
        """Return the tokens that continue a choice from a place, or end it."""
        return self._ids.of(place, self._allowed)

    def _allowed(self, place: Any) -> Collection[int]:
        known = known_ids(self._choices.continuing(place), self._vocab_size)
        ends = self._eos if self._choices.is_complete(place) else ()
        return lasting([*dict.fromkeys((*known, *(ends or ())))])


class _ChoiceProgress:
    """How far into the choices the output is."""

    __slots__ = ("choices", "done", "kept", "place")

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.place = choices.start
        #: The tokens allowed at each place, once they are needed.
        self.kept: _TokensByPlace | None = None
        #: Whether a choice was made and, if there are end tokens, ended.
        self.done = False


class ChoiceLogitProcessor(LogitProcessor):
    """Let the model generate exactly one of several texts, or of several token sequences.

    At every step the tokens that continue a choice keep their logits and all others are set to
    ``-inf``, so that the model's own probabilities choose. ``choices`` are texts as the client gets
    them, whichever tokens spell them. After a choice only ``eos_token_ids`` are allowed; with
    ``ignore_eos`` they repeat. With ``token_ids`` and without ``eos_token_ids`` the model
    continues freely after a choice.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {"choices": ["yes", "no", "I do not know"]}

    class Params(AnswerParams, frozen=True):
        """The parameters of a request.

        Attributes:
            choices: Texts of up to 256 characters, together up to 8,192 bytes of UTF-8. Give
                ``choices`` or ``token_ids``.
            token_ids: The ids of all choices, one choice after the other.
            lengths: For each choice its number of tokens, together as many as ``token_ids``.
            eos_token_ids: Tokens that end the answer; one of them comes after a choice. Left out:
                with ``choices`` the end tokens of the served model; with ``token_ids`` the answer
                continues, and no choice may be a prefix of another.
            pick: Reports the probability of each whole choice, of up to 64. ``"likeliest"``
                answers with the likeliest choice, ``"sampled"`` with one that is sampled by these
                probabilities at the temperature of the request, ``"tokens"`` token by token.
                Left out: token by token, without a report. Needs a server with the plugin.
        """

        renamed: ClassVar[Mapping[str, str]] = {"eos_token_id": "eos_token_ids"}

        choices: Texts | None = None
        token_ids: SequenceIds | None = None
        lengths: Lengths | None = None
        eos_token_ids: FewTokenIds | None = None
        pick: Literal["tokens", "likeliest", "sampled"] | None = None

        def __post_init__(self) -> None:
            """Refuse lengths that do not fit, and without end tokens a choice that is a prefix."""
            if (self.choices is None) == (self.token_ids is None):
                raise ValueError("choices: expected either choices, or token_ids and lengths")
            if self.choices is not None:
                if self.lengths is not None:
                    raise ValueError("lengths: expected with token_ids only")
                check_texts("choices", self.choices, MAX_BYTES)
            elif self.token_ids is not None:
                if self.lengths is None:
                    raise ValueError("lengths: expected the length of each choice of token_ids")
                check_lengths(self.token_ids, self.lengths)
                if self.eos_token_ids is None:
                    _check_prefixes(self.token_ids, self.lengths)
            count = len(self.choices or self.lengths or ())
            if self.pick is not None and count > _MOST_SCORED:
                raise ValueError(
                    f"pick: expected at most {_MOST_SCORED} choices with it, got {count}; leave "
                    "it out"
                )

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Refuse texts that the served model cannot write, and name its end tokens.

        Raises:
            InvalidParameter: A text cannot be written, or nothing scores choices here.
        """
        if params.pick is not None and not served.scores:
            raise InvalidParameter(
                cls.__name__,
                "pick",
                "expected none: only a server with the plugin scores the choices of a request, "
                "and those of no profile or policy; leave it out",
            )
        if params.choices is None:
            return super().fit_params(params, served)
        cls.compiled(params, served.tokenizer)
        ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids, served)
        return msgspec.structs.replace(params, eos_token_ids=ends)

    @classmethod
    def compiled(cls, params: Any, tokenizer: Any) -> Choices:
        """Return the compiled choices of fitted parameters."""
        if params.choices is not None:
            return text_choices(cls.__name__, tokenizer, params.choices)
        return token_choices(params.token_ids, params.lengths)

    def start(self, request: Request) -> _ChoiceProgress:
        """Begin before the first token of a choice."""
        return _ChoiceProgress(self.compiled(request.params, request.tokenizer))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the choices.

        Raises:
            Contradiction: The tokens, which may be resumed, begin no choice.
        """
        progress, eos = request.state, request.params.eos_token_ids
        for token_id in token_ids:
            if progress.done:
                return
            after = progress.choices.step(progress.place, token_id)
            if after is not None:
                progress.place = after
                progress.done = eos is None and progress.choices.is_complete(after)
            elif (
                eos is not None and token_id in eos and progress.choices.is_complete(progress.place)
            ):
                progress.done = True
            else:
                raise Contradiction(
                    f"token {token_id} of the answer so far continues no choice of {self.name}: "
                    "expected the beginning of a choice; change the choices or resumed_tokens"
                )

    def fork(self, request: Request) -> _ChoiceProgress:
        """Copy the state; the choices are shared."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Allow the tokens that continue a choice, or end it."""
        progress, eos = request.state, request.params.eos_token_ids
        if progress.done:
            if eos is None:
                edits.rest()
            else:  # the answer goes on with ignore_eos, and is one of the choices all the same
                edits.allow_only(eos)
            return
        progress.kept = progress.kept or _TokensByPlace(progress.choices, eos, edits.vocab_size)
        edits.allow_only(progress.kept.at(progress.place))

    def foresee(self, request: Request) -> Iterator[int]:
        """Name the tokens up to the first place with more than one allowed token."""
        progress = request.state
        place = progress.place
        while not progress.done and progress.kept is not None:
            allowed = progress.kept.at(place)
            if len(allowed) != 1:
                return
            (token_id,) = allowed
            yield token_id
            place = progress.choices.step(place, token_id)
            if place is None:  # the answer ends
                return

    def explain(self, request: Request) -> str:  # noqa: ARG002 - it is the same everywhere
        """Say which tokens are allowed."""
        return "what continues a choice, or ends it"


@shared_by_copies
def _ids_for(_choices: Choices, _eos: tuple[int, ...] | None, _vocab_size: int) -> KeptIds[Any]:
    """Return the :class:`_TokensByPlace` of all requests with these choices and ends."""
    return KeptIds()


def _check_prefixes(token_ids: Sequence[int], lengths: Sequence[int]) -> None:
    """Refuse a choice that is a prefix of another.

    Raises:
        ValueError: There is one.
    """
    # Sorted, a choice that begins with another comes right after it.
    for first, after in pairwise(sorted(map(tuple, split(token_ids, lengths)))):
        if first == after[: len(first)] and len(first) < len(after):
            raise ValueError("eos_token_ids: required, because one choice is a prefix of another")
