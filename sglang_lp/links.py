"""Links: the processors of one request with their parameters, from parsing to serving.

The parameters of a link pass four stages: *parse* checks them against the schema, *fit* against
the served model, *limit* against the length of the answer, and *serve* gives a request its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from sglang_lp.errors import InvalidParameter
from sglang_lp.faults import UNNAMED, blaming
from sglang_lp.params.parsed import fit_once
from sglang_lp.request import History

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp.params import Parameters
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.served_model import ServedModel

__all__ = [
    "Flags",
    "Link",
    "Phase",
    "Phases",
    "Serving",
    "fit",
    "links_of",
    "placed",
    "prepare",
    "serve",
    "serve_again",
]


class Phases(Protocol):
    """The phases of one answer, followed token by token; a copy follows a draft.

    Attributes:
        is_open: Whether a thinking block is open, so that the next token is thinking.
        is_settled: Whether no delimiter is begun: the next token changes the phase only if it is
            one of ``telling``.
        telling: Ids of the tokens that may begin or be a delimiter.
    """

    is_open: bool
    telling: frozenset[int]

    @property
    def is_settled(self) -> bool:
        """Whether no delimiter is begun."""

    def read(self, token_ids: Sequence[int]) -> None:
        """Read the next generated tokens."""

    def length(self, *, thinking: bool) -> int:
        """Return the number of generated tokens of a phase."""

    def spans(self, *, thinking: bool) -> Sequence[tuple[int, int]]:
        """Return the parts of a phase: first position, and number of tokens of earlier parts."""


class Phase(Protocol):
    """The phase of an answer in which a processor edits.

    Attributes:
        is_thinking: Whether it is the thinking; if not, the text outside of it.
    """

    @property
    def is_thinking(self) -> bool:
        """Whether it is the thinking."""

    @property
    def key(self) -> object:
        """A value that is equal for phases which :meth:`follow` follows alike."""

    def follow(self, prompt_ids: Sequence[int]) -> Phases:
        """Read a prompt, and return the phases of its answer before the first token."""


class Link(NamedTuple):
    """A processor and its parameters.

    Attributes:
        processor: The class.
        params: The result of its ``parse_params``, later of its ``fit_params``.
        phase: The phase in which it edits, once it was fitted; ``None`` for the whole answer.
        place: Prefix of its parameters in messages, such as ``0.`` in a chain.
        skipped: Number of resumed tokens that are prompt to it: all or none.
        is_named: Whether messages to the client name it and say why it failed.
    """

    processor: type[LogitProcessor]
    params: Any
    phase: Phase | None = None
    place: str = ""
    skipped: int = 0
    is_named: bool = True


class Flags(NamedTuple):
    """Flags of a processor, read once because a class may compute them.

    Attributes are those of :class:`~sglang_lp.processor.LogitProcessor`.
    """

    name: str
    needs: History
    tolerates_lag: bool
    can_fork: bool
    reads_prompt: bool
    makes_object: bool
    early: bool
    exclusion_only: bool
    finishes: bool
    samples: bool
    renormalizes: bool
    reads_request: bool
    dense: bool
    edits: bool

    @classmethod
    def of(cls, processor: LogitProcessor) -> Self:
        """Read the flags of a processor."""
        name, *others = (getattr(processor, field) for field in cls._fields)
        return cls(str(name), *others)


class Serving(NamedTuple):
    """A processor that serves one request.

    Attributes:
        processor: The processor.
        params: The request's own parameters; ``None`` for a class without a schema.
        phase: The phase in which it edits; ``None`` for the whole answer.
        skipped: Number of resumed tokens that are prompt to it: all or none.
        is_named: Whether messages to the client name it and say why it failed.
        is_link: Whether it is a link of a chain, whose ``custom_params`` hold those of all links.
        known: Its flags, if they were read.
    """

    processor: LogitProcessor
    params: Any
    phase: Phase | None = None
    skipped: int = 0
    is_named: bool = True
    is_link: bool = False
    known: Flags | None = None

    @property
    def flags(self) -> Flags:
        """Flags of the processor."""
        return self.known or Flags.of(self.processor)

    @property
    def needs(self) -> History:
        """How much of the history it needs: every token in a phase."""
        return self.flags.needs if self.phase is None else History.TOKENS

    @property
    def reads_prompt(self) -> bool:
        """Whether its start reads the whole prompt, as finding the phase does."""
        return self.flags.reads_prompt or self.phase is not None

    @property
    def tolerates_lag(self) -> bool:
        """Whether it edits without the newest token."""
        if self.phase is not None:
            return False
        return self.flags.needs is not History.TOKENS or self.flags.tolerates_lag

    @property
    def name(self) -> str:
        """Its name in messages to the client."""
        return self.flags.name if self.is_named else UNNAMED


def fit(link: Link, served: ServedModel) -> Link:
    """Check parsed parameters against the served model, and resolve texts to tokens.

    Copies of a request get the same parameters and phase.

    Args:
        link: A link with parsed parameters.
        served: The served model, as far as it is known.

    Raises:
        InvalidParameter: They do not fit the model, or the phase cannot be known.
    """

    def fitted(params: Parameters, served: ServedModel) -> tuple[Parameters, Phase | None]:
        params = link.processor.fit_params(params, served)
        return params, params.find_phase(link.processor.__name__, served)

    try:
        with blaming(link.processor.__name__, is_named=link.is_named):
            params, phase = fit_once(link.params, served, fitted)
    except InvalidParameter as error:
        raise placed(error, link.place) from None
    return link._replace(params=params, phase=phase)


def placed(error: InvalidParameter, place: str) -> InvalidParameter:
    """Return an error about a parameter that says where the parameter is written.

    Args:
        error: As the processor raised it.
        place: As ``Link.place``.
    """
    if not place:
        return error
    if error.parameter is None:
        number = place.rstrip(".")
        return InvalidParameter(error.processor, None, f"link {number}: {error.problem}")
    return InvalidParameter(error.processor, f"{place}{error.parameter}", error.problem)


def serve(link: Link, limit: int | None = None, made: LogitProcessor | None = None) -> Serving:
    """Return the processor that serves a request, with the request's own parameters.

    Args:
        link: A link with fitted parameters; equal requests share them.
        limit: Number of tokens after which the answer ends, resumed ones included, if known.
        made: An instance of the class, if there is one already.

    Raises:
        Exception: Raised by the class, as :func:`~sglang_lp.faults.blame` returns it.
    """
    kind, params = link.processor, link.params
    with blaming(kind.__name__, is_named=link.is_named):
        if limit is not None:
            params = kind.limit_params(params, limit - link.skipped)
        own = kind.own_params(params)
        processor = (kind() if made is None else made).serving(own)
        flags = Flags.of(processor)
    is_link = bool(link.place)
    return Serving(processor, own, link.phase, link.skipped, link.is_named, is_link, flags)


def serve_again(serving: Serving, params: Any, limit: int) -> Serving:
    """Return a processor that serves the same request with other parameters.

    Args:
        serving: Serves the request so far.
        params: The other parameters, of the same type.
        limit: As for :func:`serve`.
    """
    kind, phase = type(serving.processor), serving.phase
    link = Link(kind, params, phase, skipped=serving.skipped, is_named=serving.is_named)
    return serve(link, limit)._replace(is_link=serving.is_link)


def prepare(
    processor: LogitProcessor, custom_params: Any, served: ServedModel, limit: int | None = None
) -> list[Serving]:
    """Parse and fit the parameters of a request, and return the processors that serve it.

    Args:
        processor: An instance of the class that the request names.
        custom_params: The parameters of the request, or ``None``.
        served: The served model, as far as it is known.
        limit: Number of tokens after which the answer ends, if known.

    Raises:
        RequestError: The parameters do not fit the processor or the served model.
    """
    params = processor.parse_params(custom_params, served.vocab_size)
    return [
        serve(fit(link, served), limit, processor if link.processor is type(processor) else None)
        for link in links_of(type(processor), params)
    ]


def links_of(processor: type[LogitProcessor], params: Parameters) -> Sequence[Link]:
    """Return the links of a chain with parsed parameters; of another class, the class itself."""
    return [Link(*one) for one in processor.links(params)]
