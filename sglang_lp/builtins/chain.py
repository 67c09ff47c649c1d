"""Several processors for one request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta

from sglang_lp.builtins.homes import HOMES, load
from sglang_lp.errors import InvalidParameter, PayloadRefused, shown
from sglang_lp.links import Link, Linked, parse_links, placed
from sglang_lp.params import MAX_TOKEN_IDS, Parameters, is_private, parse
from sglang_lp.processor import LogitProcessor, subclasses_of

#: A parameter of a link: its place in the chain, a dot, and the parameter's own name.
_KEY = re.compile(r"(0|[1-9][0-9]?)\.(.+)", re.DOTALL)

#: Most links of a chain.
MAX_CHAIN = 8

#: Methods of a processor that runs, which a chain does not.
_OF_LINKS = frozenset({"start", "advance", "fork", "edit", "compute", "serving", "__call__"})
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
    - a second link of a kind that reads the prompt: a thinking budget, no-repeat n-gram, DRY,
      words of the prompt;
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

    #: From the name of a link to its class; raises ``RequestError`` for one that may not run.
    _resolve: ClassVar[Callable[[str], type[LogitProcessor]]] = staticmethod(_find_imported)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _OF_LINKS & vars(cls).keys():
            raise TypeError(
                f"{cls.__name__}.{name}: expected none, as a chain only names its links, which "
                "run by themselves; write a link instead"
            )

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
    def parse_params(cls, custom_params: Any, vocab_size: int | None = None) -> Linked:
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
        links: list[Link] = []
        for place, name in enumerate(params.chain):
            kind = cls._find(place, name)
            cls.check_link(kind, [other.processor for other in links])
            try:
                (link,) = parse_links(kind, given.get(place, {}), vocab_size)
            except InvalidParameter as error:
                raise placed(error, f"{place}.") from None
            links.append(link._replace(place=f"{place}."))
        return Linked(linked=tuple(links))

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
