"""Several processors for one request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain as follow
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import msgspec
import orjson
from msgspec import Meta

from sglang_lp.builtins.homes import HOMES, load
from sglang_lp.builtins.link import Link, LinkRequest
from sglang_lp.edits import NEVER
from sglang_lp.errors import InvalidParameter, PayloadRefused, shown
from sglang_lp.faults import UNNAMED, blaming
from sglang_lp.params import MAX_TOKEN_IDS, Parameters, is_private, parse
from sglang_lp.processor import (
    LogitProcessor,
    Recording,
    Whole,
    fit_phased,
    serve_phased,
    subclasses_of,
)
from sglang_lp.request import History, Request

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.served_model import ServedModel

#: A parameter of a link: its place in the chain, a dot, and the parameter's own name.
_KEY = re.compile(r"(0|[1-9][0-9]?)\.(.+)", re.DOTALL)

#: Most links of a chain.
MAX_CHAIN = 8

_Made = TypeVar("_Made")
Names = Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_CHAIN)]


def _find_imported(name: str) -> type[LogitProcessor]:
    """Return the built-in, or the imported processor, of this name.

    Raises:
        InvalidParameter: No imported processor has this name.
    """
    own = name.removeprefix(f"{ChainLogitProcessor.__module__}:")
    if own in HOMES:
        return load(own)  # type: ignore[no-any-return]
    for processor in subclasses_of(LogitProcessor):
        if name == f"{processor.__module__}:{processor.__qualname__}":
            return processor
    raise InvalidParameter(
        "ChainLogitProcessor",
        "chain",
        f"expected names of built-ins or module:Class of imported processors, got {shown(name)}",
    )


def links_of(processor: LogitProcessor) -> list[tuple[str, LogitProcessor]]:
    """Return the links of a chain, or a processor by itself, each with its name for messages."""
    if isinstance(processor, ChainLogitProcessor):
        return processor.links_by_name()
    return [(processor.name, processor)]


def _of_links(
    params: Any, make: Callable[[int, type[LogitProcessor], Any], _Made]
) -> tuple[_Made, ...]:
    """Make something of each link; an error names its link, unless the link is unnamed.

    Args:
        params: Parameters of a chain.
        make: Gets a link's place, its class and its parameters.
    """
    made = []
    for place, (link, own) in enumerate(params.links):
        with blaming(link.__name__, is_named=place < len(params.links) - params.unnamed):
            made.append(make(place, link, own))
    return tuple(made)


#: What a chain is of its links: read once, because a class may compute them.
_FLAGS = (
    *("name", "needs", "dense", "can_fork", "early", "finishes", "renormalizes"),
    *("exclusion_only", "reads_prompt", "makes_object", "reads_request", "tolerates_lag"),
)


def _serve(_place: int, link: type[LogitProcessor], own: Any) -> tuple[LogitProcessor, Any, Any]:
    """Return the processor that serves a link, its parameters and its flags."""
    processor = serve_phased(link(), own)
    flags = SimpleNamespace(**{flag: getattr(processor, flag) for flag in _FLAGS})
    return processor, own, flags


class ChainLogitProcessor(LogitProcessor):
    """Run several processors, the links, on one request.

    ``chain`` names the links; each parameter of a link carries the link's place in ``chain`` and
    a dot before its own name::

        {"chain": ["BadWordsLogitProcessor", "ThinkingBudgetLogitProcessor"],
         "0.words": ["as an AI"], "1.thinking_budget": 100}

    A link is named as in ``custom_logit_processor``: a built-in by its name, another class as
    ``module:Class``. A server accepts only the links that its policy allows. Each link checks its
    own parameters.

    All links see the same history and their edits are applied together, once: bans and biases
    add up, a token is allowed if all links allow it, and the order in ``chain`` does not matter. If
    the edits leave no token, as when one link forces a token that another bans, the request ends
    with an error that names the links.

    The order in ``chain`` matters for two kinds of links:

    - Links that compute on whole rows (override ``__call__``, or were written for another engine)
      run first, in this order. The edits are applied to their result.
    - Links that change ``request.logits`` themselves do so in this order, before the edits.

    Refused, because one request must not cost the batch as much as many, are:

    - a link that is a chain itself;
    - a second link of a class that computes on whole rows;
    - a second link of a kind that reads the whole prompt: a thinking budget, no-repeat n-gram, DRY;
    - lists of more than 65,536 entries in all links together.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    example: ClassVar[Mapping[str, Any]] = {
        "chain": ["BadWordsLogitProcessor", "DRYLogitProcessor"],
        "0.words": ["as an AI"],
        "1.dry_multiplier": 1.2,
    }

    class Params(Parameters, frozen=True):
        """The parameters of a request, in addition to the parameters of the links.

        Attributes:
            chain: Names of the links, 1 to 8. The first is number 0, and its parameter
                ``words`` is ``0.words`` here.
        """

        chain: Names

    class _Linked(Params, frozen=True):
        """The parameters with the class of each link and that link's parsed parameters."""

        links: tuple[tuple[type[LogitProcessor], Parameters], ...] = ()
        unnamed: int = 0
        skipped: tuple[int, ...] = ()

    #: From the name of a link to its class; raises ``RequestError`` for one that may not run.
    _resolve: ClassVar[Callable[[str], type[LogitProcessor]]] = staticmethod(_find_imported)

    def __init__(self) -> None:
        #: Each processor and its parameters, in order; empty until a request is served.
        self.links: list[tuple[LogitProcessor, Parameters]] = []
        #: The name of each link.
        self.names: list[str] = []
        #: How many of the last links messages to the client do not name.
        self.unnamed = 0
        #: For each link the number of resumed tokens that are part of the prompt to it.
        self.skipped: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Class names of the chain and its named links, for messages."""
        names = ", ".join(self.names[: len(self.links) - self.unnamed])
        if self.unnamed and not names:
            return UNNAMED
        return f"{type(self).__name__} ({names})" if names else type(self).__name__

    def links_by_name(self) -> list[tuple[str, LogitProcessor]]:
        """Return each link's processor with its name for messages."""
        named = len(self.links) - self.unnamed
        return [
            (self.names[place] if place < named else UNNAMED, processor)
            for place, (processor, _) in enumerate(self.links)
        ]

    @classmethod
    def limited_to(cls, resolve: Callable[[str], type[LogitProcessor]]) -> type[Self]:
        """Return this class with another look-up of its links, as in a server's policy.

        Args:
            resolve: From the name of a link to its class; raises ``RequestError`` for one that
                may not run.
        """
        own = {"__module__": cls.__module__, "_resolve": staticmethod(resolve)}
        return type(cls.__name__, (cls,), own)

    @classmethod
    def _takes_long(cls, custom_params: Mapping[str, Any]) -> bool:  # noqa: ARG003 - always
        """Links have schemas of their own."""
        return True

    @classmethod
    def _parse(cls, custom_params: Any, vocab_size: int | None) -> Parameters:
        """Check the names of the links, and the parameters of each by its own schema."""
        own, given = cls._split(custom_params)
        params = parse(cls.Params, cls.__name__, own)
        values = [value for link in given.values() for value in link.values()]
        ids = sum(
            len(value)
            for value in values
            if isinstance(value, list | tuple | set | frozenset | dict)
        )
        if ids > MAX_TOKEN_IDS:  # else eight links cost the batch as much as eight requests
            raise InvalidParameter(
                cls.__name__,
                None,
                f"expected lists of at most {MAX_TOKEN_IDS} entries in all links together, got "
                f"{ids}; make them shorter",
            )
        for place in given:
            if place >= len(params.chain):
                raise InvalidParameter(
                    cls.__name__,
                    f"{place}.{next(iter(given[place]))[:40]}",
                    f"there is no link {place}; the {len(params.chain)} links count from 0",
                )
        links: list[tuple[type[LogitProcessor], Parameters]] = []
        for place, name in enumerate(params.chain):
            link = cls._find(place, name)
            cls.check_link(link, [other for other, _ in links])
            with cls._name_place(place), blaming(link.__name__):
                links.append((link, link.parse_params(given.get(place, {}), vocab_size)))
        return cls._Linked(chain=params.chain, links=tuple(links))

    @classmethod
    def _find(cls, place: int, name: str) -> type[LogitProcessor]:
        """Return the class of a link; an error names the link."""
        try:
            return cls._resolve(name)
        except PayloadRefused as refused:
            problem = str(refused).removeprefix("custom_logit_processor: ")
            raise PayloadRefused(
                f"chain of {cls.__name__}: link {place}: {problem}",
                reason=refused.reason,
                digest=refused.digest,
                size=refused.size,
            ) from None

    @classmethod
    def join(
        cls, links: Sequence[tuple[type[LogitProcessor], Parameters]], unnamed: int = 0
    ) -> Parameters:
        """Return the parameters of a chain of these links, as ``parse_params`` does.

        The limits on a request's chain do not apply to the operator of a server.

        Args:
            links: Classes with their parsed parameters.
            unnamed: How many of the last links messages to the client do not name.
        """
        names = tuple(link.__name__ for link, _ in links)
        return cls._Linked(chain=names, links=tuple(links), unnamed=unnamed)

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Parameters:
        """Let every link check its parameters against the served model."""
        links = []
        for place, (link, own) in enumerate(params.links):
            with cls._name_place(place), blaming(link.__name__):
                links.append((link, fit_phased(link, own, served)))
        return msgspec.structs.replace(params, links=tuple(links))  # type: ignore[no-any-return]

    @classmethod
    def limit_params(cls, params: Any, limit: int) -> Any:
        """Give every link the limit, less the resumed tokens that are prompt to it."""
        skipped = params.skipped or (0,) * len(params.links)
        links = _of_links(
            params,
            lambda place, link, own: (link, link.limit_params(own, limit - skipped[place])),
        )
        if all(one[1] is other[1] for one, other in zip(links, params.links, strict=True)):
            return params
        return msgspec.structs.replace(params, links=links)

    @classmethod
    def own_params(cls, params: Any) -> Any:
        """Return the chain with the parameters that each link may change."""
        links = _of_links(params, lambda _, link, own: (link, link.own_params(own)))
        if all(one[1] is other[1] for one, other in zip(links, params.links, strict=True)):
            return params  # copies of a request share what is derived from this object
        return msgspec.structs.replace(params, links=links)

    @classmethod
    @contextmanager
    def _name_place(cls, place: int) -> Iterator[None]:
        """Add the link's place to an error about one of its parameters."""
        try:
            yield
        except InvalidParameter as error:
            if error.parameter is None:
                problem = f"link {place}: {error.problem}"
                raise InvalidParameter(error.processor, None, problem) from None
            where = f"{place}.{error.parameter}"
            raise InvalidParameter(error.processor, where, error.problem) from None

    @classmethod
    def _split(cls, custom_params: Any) -> tuple[Any, dict[int, dict[str, Any]]]:
        """Return the chain's own parameters, and those of the links by place."""
        if not isinstance(custom_params, Mapping):
            return custom_params, {}
        own: dict[Any, Any] = {}
        given: dict[int, dict[str, Any]] = {}
        for key, value in custom_params.items():
            if is_private(key):
                continue
            match = _KEY.fullmatch(key)
            if match and not is_private(match[2]):
                given.setdefault(int(match[1]), {})[match[2]] = value
            elif key in cls.Params.__struct_fields__:
                own[key] = value
            else:
                raise InvalidParameter(
                    cls.__name__,
                    None,
                    f"unknown parameter {shown(key)}; a link's parameter carries the link's "
                    'place, as "0.token_ids" does',
                )
        return own, given

    @classmethod
    def check_link(cls, link: type[LogitProcessor], before: Sequence[type]) -> None:
        """Refuse a chain, and a second link of a kind that is expensive."""
        if issubclass(link, ChainLogitProcessor):
            problem = f"{link.__name__} is a chain itself; name its links instead"
            raise InvalidParameter(cls.__name__, "chain", problem)
        kind = link
        if link.reads_prompt:
            # The topmost base that says so is the kind: one for all thinking budgets.
            kind = [base for base in link.__mro__ if vars(base).get("reads_prompt")][-1]
        if (link.reads_prompt or link.dense) and any(issubclass(other, kind) for other in before):
            raise InvalidParameter(
                cls.__name__,
                "chain",
                f"expected at most one {kind.__name__} or kind of it, got two; leave one out",
            )

    def serving(self, params: Any) -> Self:
        """Return a chain of the links that these parameters name; it needs what they need."""
        chain = type(self)()  # nothing of a request stays on the instance that serves many
        made = _of_links(params, _serve)
        chain.links = [(processor, own) for processor, own, _ in made]
        flags = [of_link for *_, of_link in made]
        chain.names = [str(one.name) for one in flags]
        chain.unnamed = params.unnamed
        chain.skipped = params.skipped or (0,) * len(chain.links)
        chain.needs = max(one.needs for one in flags)
        chain.dense = any(one.dense for one in flags)
        if chain.dense:  # with NONE it would be asked only once
            chain.needs = max(chain.needs, History.POSITION)
        chain.can_fork = all(one.can_fork for one in flags)
        chain.early = all(one.early for one in flags)
        chain.finishes = any(one.finishes for one in flags)
        chain.renormalizes = any(one.renormalizes for one in flags)
        chain.exclusion_only = all(one.exclusion_only for one in flags)
        chain.reads_prompt = any(one.reads_prompt for one in flags)
        chain.makes_object = any(one.makes_object for one in flags)
        chain.reads_request = any(one.reads_request for one in flags)
        chain.tolerates_lag = all(one.tolerates_lag for one in flags if one.needs is History.TOKENS)
        return chain

    def start(self, request: Request) -> list[Link]:
        """Start every link."""
        named = len(self.links) - self.unnamed
        links = [
            Link(processor, name, LinkRequest(request, params, skipped), is_named=place < named)
            for place, ((processor, params), name, skipped) in enumerate(
                zip(self.links, self.names, self.skipped, strict=True)
            )
        ]
        for link in links:
            link.start()
        return links

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Pass the tokens on to every link."""
        for link in request.state:
            link.advance(token_ids)

    def rewind(self, request: Request) -> None:
        """Prepare every link for a step that is repeated."""
        for link in request.state:
            link.rewind()

    def wholes(self, request: Request, custom_params: Any) -> Sequence[Whole]:
        """Return the links that compute on whole rows, each with its own parameters."""
        source = custom_params.get("__req__")
        return [link.whole(source) for link in request.state if link.processor.dense]

    def fork(self, request: Request) -> list[Link]:
        """Fork the state of every link."""
        return [link.fork(request) for link in request.state]

    def foresee(self, request: Request) -> Iterable[int]:
        """Name the tokens of the first link that forces one."""
        for link in request.state:
            forced = link.foresee()
            for token_id in forced:
                return follow([token_id], forced)
        return ()

    def report(
        self,
        params: Any,  # noqa: ARG002 - each link has its own
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        forced: Sequence[Sequence[int]],
    ) -> dict[str, Any]:
        """Return the reports of the named links."""
        joined: dict[str, Any] = {}
        named = len(self.links) - self.unnamed
        links = zip(self.links[:named], self.names, self.skipped, strict=False)
        for (processor, own), name, skipped in links:
            prompt = [*prompt_ids, *output_ids[:skipped]] if skipped else prompt_ids
            spans = [(start - skipped, stop - skipped) for start, stop in forced]
            with blaming(name):
                part = processor.report(own, prompt, output_ids[skipped:], spans)
                orjson.dumps({**part})  # a report that is no JSON is its class's fault
            joined |= part
        return joined

    def edit(self, request: Request, edits: Edits) -> None:
        """Collect the edits of the links that are awake, and sleep until the next link wakes."""
        position = request.position
        nothing = stays = True
        links = [link for link in request.state if link.processor.edits]
        for link in links:
            at = position - link.request.skipped
            if link.looked < at < link.wake:
                if link.held is not None:
                    edits.add(link.held)
                    nothing = nothing and link.held.is_empty
                continue
            own = Recording(edits.vocab_size)
            link.edit(own)
            if own.standing is not None:
                edits.always().add(own.standing)
            link.looked = at
            if link.processor.needs is History.NONE:
                edits.always().add(own)
                link.wake = NEVER
                continue
            edits.add(own)
            link.wake = at + 1 if own.wake is None else own.wake
            link.held = own if own.holds else None
            stays = stays and (own.holds or own.is_empty)
            nothing = nothing and own.is_empty
            if own.end is not None:
                edits.finish(*own.end)
        # Links that compute on whole rows do so at every step.
        wake = position + 1 if self.dense else min(link.wakes for link in links)
        if nothing:
            edits.wake_at(wake)
        elif stays and wake > position + 1:
            edits.hold_until(wake)
        elif not all(link.held is None for link in links):
            edits.wake_at(position + 1)  # held edits hold on, the others may change
        else:
            edits.wake_at(wake)
