"""Links: the processors of one request with their parameters, from parsing to serving.

The parameters pass four stages, the same for built-ins, adapted classes and chains:

========= ==================================== =================================================
stage     asks the class                       to
========= ==================================== =================================================
*parse*   ``parse_params``                     check them against its schema
*fit*     ``fit_params``, and ``Params`` for   check them against the served model, and find text
          the phase                            and phase in its vocabulary
*limit*   ``limit_params``                     fit them to the number of tokens of the answer
*serve*   ``serving``                          serve one request, with parameters of its own
========= ==================================== =================================================

Copies of a request are parsed and fitted once; a chain is parsed as one and gives its links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sglang_lp.errors import InvalidParameter
from sglang_lp.faults import UNNAMED, blaming
from sglang_lp.flags import Flags
from sglang_lp.params import Parameters, unshared
from sglang_lp.params.parsed import fit_once, parse_once
from sglang_lp.served_model import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp.processor import LogitProcessor
    from sglang_lp.served_model import ServedModel

__all__ = [
    "Link",
    "Linked",
    "Phase",
    "Phases",
    "Serving",
    "fit",
    "parse_links",
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


class Linked(Parameters, frozen=True):
    """Parsed parameters of a chain.

    Attributes:
        linked: Its links.
    """

    linked: tuple[Link, ...]


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
    def in_row(self) -> Flags:
        """Flags of the processor in its place: in a phase, or in the whole answer."""
        return self.flags if self.phase is None else self.flags.in_phase

    @property
    def name(self) -> str:
        """Its name in messages to the client."""
        return self.flags.name if self.is_named else UNNAMED


def parse_links(
    processor: type[LogitProcessor], custom_params: Any, vocab_size: int | None = None
) -> list[Link]:
    """Check parameters against the schema of a class; return its links, or the class itself.

    Args:
        processor: The class that a request names.
        custom_params: The parameters of the request, or ``None``.
        vocab_size: Number of logits in a row of the served model, if known.

    Raises:
        RequestError: They do not fit the class.
        Exception: Raised by the class, as :func:`~sglang_lp.faults.blame` returns it.
    """
    with blaming(processor.__name__):
        params = parse_once(processor, custom_params, vocab_size)
    return [*params.linked] if isinstance(params, Linked) else [Link(processor, params)]


def fit(link: Link, served: ServedModel) -> Link:
    """Check parsed parameters against the served model, and resolve texts to tokens.

    Copies of a request get the same parameters and phase.

    Args:
        link: A link with parsed parameters.
        served: The served model, as far as it is known; ``UNKNOWN`` to leave them as they are.

    Raises:
        InvalidParameter: They do not fit the model, or the phase cannot be known.
    """
    if served is UNKNOWN:
        return link

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
        own = unshared(params)
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
    kind = type(processor)
    return [
        serve(fit(link, served), limit, processor if link.processor is kind else None)
        for link in parse_links(kind, custom_params, served.vocab_size)
    ]
