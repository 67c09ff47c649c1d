"""A policy's decisions, applied to one request at a time: the same in the gate of every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sglang_lp import builtins
from sglang_lp.adapters import AdaptedProcessor, as_processor
from sglang_lp.builtins import ChainLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.errors import InvalidParameter, PolicyError, RequestError, Unsupported, shown
from sglang_lp.importing import parse_entry
from sglang_lp.params import is_private
from sglang_lp.policy import classes
from sglang_lp.policy.ceilings import could_reach, lower, refusal
from sglang_lp.policy.decisions import Above
from sglang_lp.policy.links import (
    Link,
    begin_inside,
    parts,
    thinks,
    with_budget,
    with_total,
)
from sglang_lp.policy.thinking import BUDGET, TOTAL, Wishes, decide_budget
from sglang_lp.processor import LogitProcessor, fit
from sglang_lp.served_model import ServedModel

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.known import ReasoningFormat
    from sglang_lp.policy.decisions import Chosen, Decisions, Profile

__all__ = ["Asked", "Decided", "Rules"]

_CLOSING = "closing_token_ids"


class Asked(NamedTuple):
    """What a request asks for.

    Attributes:
        payload: Its ``custom_logit_processor``: a payload, the name of a class or of a profile.
        custom_params: Its own, or ``None``.
        field: Another field of the request that is a thinking budget.
        effort: The level of effort that it asks for.
        limit: How many tokens it can get, if known.
        reasoning: Whether its answer is parsed as one that may begin with reasoning.
    """

    payload: Any
    custom_params: Any = None
    field: int | None = None
    effort: str | None = None
    limit: int | None = None
    reasoning: bool = False


class Decided(NamedTuple):
    """What a request runs.

    Attributes:
        processor: The class.
        params: Parsed parameters that fit the served model; for a class without a schema what it
            reads as ``custom_params``.
        names: Of the processors that the client may know of.
    """

    processor: type[LogitProcessor]
    params: Any
    names: tuple[str, ...]


class _Profile(NamedTuple):
    links: list[tuple[type[LogitProcessor], dict[str, Any]]]
    may_set: frozenset[str]


class _Own(NamedTuple):
    """What a request runs before anything is added, and what it wishes to think."""

    links: list[Link]
    wishes: Wishes


class Rules:
    """What a policy decides.

    Args:
        decisions: Of the policy.
        find: From a request's payload to an allowed class; raises ``RequestError``.
        allowed: All of these classes, but for pinned ones that nobody has sent yet.

    Raises:
        PolicyError: A class cannot be imported or served, or a parameter does not fit it.
    """

    def __init__(
        self, decisions: Decisions, find: Callable[[Any], type], allowed: Iterable[type[Any]] = ()
    ) -> None:
        self._decisions = decisions
        self._find: Callable[[Any], type[LogitProcessor]] = lambda text: as_processor(find(text))
        #: Whether requests run what they bring, and nothing else is decided.
        self.is_empty = decisions.is_empty
        self._always: list[Link] = []
        self._delimiters: dict[ReasoningFormat | None, tuple[Any, Any]] = {}
        self._always_chosen = [
            _load(chosen, f"always[{index}]") for index, chosen in enumerate(decisions.always)
        ]
        for index, (processor, _) in enumerate(self._always_chosen):
            _check_always(processor, f"always[{index}]")
        self._default = _load(decisions.defaults, "defaults") if decisions.defaults else None
        #: What a budget runs in that comes without a processor.
        self._template: tuple[type[LogitProcessor], dict[str, Any]]
        self._template = ThinkingBudgetLogitProcessor, {}
        thinking = self._default is not None and _is_thinking(self._default[0])
        if self._default is not None and thinking:
            self._template = self._default
        self._profiles = {
            name: _load_profile(profile, f"profiles.{name}")
            for name, profile in decisions.profiles.items()
        }
        for name in decisions.profiles:
            if name in builtins.__all__:
                raise PolicyError(f"profiles.{name}: a built-in has this name; choose another one")
        self._levels = decisions.levels
        self._ceiling = decisions.ceilings.get(BUDGET)
        self._total = decisions.ceilings.get(TOTAL)
        for name, ceiling in ((BUDGET, self._ceiling), (TOTAL, self._total)):
            if ceiling and not (isinstance(ceiling.at_most, int) and ceiling.at_most >= 0):
                raise PolicyError(
                    f"ceilings.{name}: expected a whole number of tokens, got {ceiling.at_most}"
                )
        #: Whether thinking budgets are this server's business, and not the request's alone.
        self.budgets = thinking or decisions.reads_effort
        self.budgets = self.budgets or self._ceiling is not None or self._total is not None
        self._check_names(allowed)

    def has_profile(self, payload: object) -> bool:
        """Tell whether a request's payload is the name of a profile."""
        return type(payload) is str and payload in self._profiles

    @property
    def reads_effort(self) -> bool:
        """Whether the budgets and efforts that clients send count."""
        return self._decisions.reads_effort

    @property
    def reads_fields(self) -> bool:
        """Whether the budgets count that clients send in fields of their own."""
        return self._decisions.fields

    def fit(self, served: ServedModel) -> None:
        """Check everything against the served model, and make what every request gets.

        Args:
            served: The model.

        Raises:
            PolicyError: Something cannot work with this model.
        """
        self._always = []
        for index, (processor, params) in enumerate(self._always_chosen):
            with _naming(f"always[{index}]"):
                self._always.append(_fit(_parse(processor, params, served), served))
        if self.budgets:
            with _naming("thinking budgets"):
                for one in served.by_effort():
                    template = _fit(_parse(*self._template, one), one)
                    self._delimiters[one.reasoning] = template.params.start, template.params.end
                    self._with_budget(template, 0)
        if self._default is not None:
            with _naming("defaults"):
                self.decide(Asked(None), served)
        for name, profile in self._profiles.items():
            with _naming(f"profiles.{name}", profile.may_set):
                self.decide(Asked(name), served)

    def decide(self, asked: Asked, served: ServedModel) -> Decided | None:
        """Return what a request runs, ``None`` for nothing.

        Args:
            asked: What it asks for.
            served: The model.

        Raises:
            RequestError: Refused.
        """
        if self.is_empty and asked.field is None:
            if asked.payload is None:
                return None
            own = _fit(_parse(self._find(asked.payload), asked.custom_params, served), served)
            names = tuple(link.processor.__name__ for link in parts(own))
            decided: Decided | None = Decided(*own, names)
        else:
            decided = self._decide(asked, served)
        form = served.reasoning
        if decided is None or form is None or not (asked.reasoning and form.can_begin_inside):
            return decided
        link = begin_inside(Link(decided.processor, decided.params))
        return decided._replace(params=link.params)

    def _decide(self, asked: Asked, served: ServedModel) -> Decided | None:
        """Return the same where something is decided."""
        own = self._own(asked, served)
        # Before anything is decided: what a text says is tokens, which a ceiling counts.
        asked_for = [_fit(link, served) for link in own.links]
        links = [lower(link, self._decisions.ceilings) for one in asked_for for link in parts(one)]
        links = self._limit_thinking(links, own.wishes, asked.limit, served)
        every = [*links, *self._always]
        if not every:
            return None
        if len(links) == len(every) == 1:
            fitted = every[0]
        elif len(asked_for) == 1 and _same(parts(asked_for[0]), every):
            fitted = asked_for[0]  # a chain as the request wrote it
        else:
            params = ChainLogitProcessor.join(every, unnamed=len(self._always))
            fitted = Link(ChainLogitProcessor, params)
        for link in parts(fitted):
            self._check_delimiters(link, served)
        names = tuple(link.processor.__name__ for link in links)
        return Decided(fitted.processor, fitted.params, names)

    def _own(self, asked: Asked, served: ServedModel) -> _Own:
        """Return the processors of a request without what the operator adds."""
        given = asked.custom_params
        effort = self._levels.get(asked.effort or "")
        if self.has_profile(asked.payload):
            return self._of_profile(asked, effort, served)
        if asked.payload is not None:
            processor = self._find(asked.payload)
            _check_plain(processor)
            link = _parse(processor, given, served)
            budget = next((one.params for one in parts(link) if thinks(one)), None)
            if budget is None:
                return _Own([link], Wishes(field=asked.field, effort=effort))
            default = self._template[1].get(BUDGET)
            return _Own([link], Wishes(budget.thinking_budget, asked.field, effort, default))
        own = self._bare_budget(asked)
        if self._default is None:
            return _Own([], Wishes(own, asked.field, effort))
        processor, params = self._default
        fields = _fields(processor)
        set_too = {k: v for k, v in _public(given).items() if k in fields and v is not None}
        link = _parse(processor, {**params, **set_too}, served)
        return _Own([link], Wishes(own, asked.field, effort, params.get(BUDGET)))

    def _of_profile(self, asked: Asked, effort: int | None, served: ServedModel) -> _Own:
        """Return what a profile runs, with what it lets the request set."""
        profile = self._profiles[asked.payload]
        given = _public(asked.custom_params)
        for name in given:
            if name not in profile.may_set:
                allowed = ", ".join(sorted(profile.may_set)) or "no parameter"
                raise InvalidParameter(
                    asked.payload,
                    None,
                    f"this profile lets a request set {allowed}, got {shown(name)}",
                )
        links, base = [], None
        for processor, params in profile.links:
            fields = _fields(processor)
            own = {name: value for name, value in given.items() if name in fields}
            links.append(_parse(processor, {**params, **own}, served))
            if thinks(links[-1]):
                base = params.get(BUDGET)
        if BUDGET not in profile.may_set:
            return _Own(links, Wishes(default=base))
        wish = None
        if given.get(BUDGET) is not None:
            budgets = (link.params.thinking_budget for link in links if thinks(link))
            wish = next(budgets, None)
        return _Own(links, Wishes(wish, asked.field, effort, base))

    def _bare_budget(self, asked: Asked) -> int | None:
        """Return the ``thinking_budget`` of a request that names no processor."""
        given = _public(asked.custom_params)
        if not self._limits_thinking(asked.field) or given.get(BUDGET) is None:
            return None
        parsed = _parse(ThinkingBudgetLogitProcessor, {BUDGET: given[BUDGET]}, ServedModel())
        return parsed.params.thinking_budget  # type: ignore[no-any-return]

    def _limits_thinking(self, field: int | None) -> bool:
        """Tell whether the thinking of a request is this server's business."""
        return self.budgets or field is not None

    def _limit_thinking(
        self, links: list[Link], wishes: Wishes, limit: int | None, served: ServedModel
    ) -> list[Link]:
        """Put the thinking budget that was decided into its link, or add one."""
        if not self._limits_thinking(wishes.field):
            return links
        place = next((i for i, link in enumerate(links) if thinks(link)), len(links))
        processor = links[place].processor if place < len(links) else self._template[0]
        most = self._most(processor, wishes.asked)
        budget = decide_budget(wishes, most, limit, self._decisions.answer_room)
        if place == len(links):
            if budget is None and self._total is None:
                return links
            links = [*links, _fit(_parse(*self._template, served), served)]
        link = self._with_budget(links[place], budget)
        if self._total is not None:
            total = int(self._total.at_most)
            own = link.params.total_thinking_tokens
            # More than the ceiling was lowered, or refused, as any other number.
            link = with_total(link, total if own is None else min(own, total))
        return [*links[:place], link, *links[place + 1 :]]

    def _most(self, processor: type[LogitProcessor], asked: int | None) -> int | None:
        """Return the ceiling on thinking budgets; ``None`` for none.

        Raises:
            InvalidParameter: The request asks for more, which the operator wants refused.
        """
        if self._ceiling is None:
            return None
        most = int(self._ceiling.at_most)
        if self._ceiling.above == Above.REFUSE and asked is not None and not 0 <= asked <= most:
            raise refusal(processor, BUDGET, most, asked)
        return most

    def _with_budget(self, link: Link, budget: int | None) -> Link:
        """Give a link its budget; under a ceiling what comes before the end counts as thinking."""
        if budget is None:
            if link.params.thinking_budget is None or link.params.thinking_budget < 0:
                return link
            return link._replace(params=msgspec.structs.replace(link.params, thinking_budget=None))
        if self._ceiling is not None:
            most = int(self._ceiling.at_most)
            message = len(link.params.closing_token_ids)
            if message > most:
                raise refusal(link.processor, _CLOSING, most, message)
            newline = not message and link.params.new_line_token_id is not None
            budget = max(0, min(budget, most - message - newline))
        return with_budget(link, budget)

    def _check_delimiters(self, link: Link, served: ServedModel) -> None:
        """Refuse a budget that watches something else than the served model's thinking."""
        no_ceiling = self._ceiling is None and self._total is None
        expected = self._delimiters.get(served.reasoning)
        if no_ceiling or not thinks(link) or expected is None:
            return
        if (link.params.start, link.params.end) != expected:
            raise InvalidParameter(
                link.processor.__name__,
                "thinking_start_token_id",
                "expected the served model's thinking delimiters, for which this server has a "
                "ceiling; leave them out",
            )

    def _check_names(self, allowed: Iterable[type[Any]]) -> None:
        """Refuse a ceiling that nothing could ever reach."""
        known = [*allowed]
        known += [getattr(builtins, name) for name in builtins.__all__]
        known += [processor for processor, _ in self._always_chosen]
        known += [processor for one in self._profiles.values() for processor, _ in one.links]
        known += [self._default[0]] if self._default else []
        for name in self._decisions.ceilings:
            if not any(could_reach(processor, name) for processor in known):
                raise PolicyError(
                    f"ceilings.{name}: no class of this policy has a parameter of this name that "
                    "is a number; correct the name"
                )


def _load(chosen: Chosen, where: str) -> tuple[type[LogitProcessor], dict[str, Any]]:
    """Import a class that the operator chose, and check its parameters as far as they go."""
    if chosen.processor in builtins.__all__:
        module, name = builtins.__name__, chosen.processor
    else:
        module, name = parse_entry(chosen.processor, f"{where}.processor")
    processor = as_processor(classes.load(module, name, where))
    for key in chosen.params:
        if is_private(key) or not _takes(processor, key):
            fields = ", ".join(_fields(processor)) or "none"
            raise PolicyError(
                f"{where}.params: {name} has no parameter {shown(key)}; its parameters: {fields}"
            )
    return processor, chosen.params


def _load_profile(profile: Profile, where: str) -> _Profile:
    links = [
        _load(chosen, f"{where}.processors[{index}]")
        for index, chosen in enumerate(profile.processors)
    ]
    for processor, _ in links if len(links) > 1 else ():
        if issubclass(processor, ChainLogitProcessor):
            raise PolicyError(
                f"{where}: {processor.__name__} cannot run beside others; name its links instead"
            )
    if sum(_is_thinking(processor) for processor, _ in links) > 1:
        raise PolicyError(f"{where}: expected at most one thinking budget")
    for name in profile.may_set:
        owners = [processor.__name__ for processor, _ in links if name in _fields(processor)]
        if len(owners) != 1:
            raise PolicyError(
                f"{where}.may_set: expected parameters that one of its processors has, got "
                f"{shown(name)}, which {' and '.join(owners) or 'none of them'} has"
            )
    return _Profile(links, frozenset(profile.may_set))


def _check_always(processor: type[LogitProcessor], where: str) -> None:
    if _is_thinking(processor):
        raise PolicyError(
            f"{where}: a thinking budget is a matter of [defaults] and [ceilings], which know what "
            "requests ask for; put it there"
        )
    if issubclass(processor, ChainLogitProcessor):
        raise PolicyError(
            f"{where}: {processor.__name__} cannot run beside a request's own processor; give each "
            "of its links an entry of its own"
        )


def _check_plain(processor: type[LogitProcessor]) -> None:
    """Refuse a chain of another kind, whose links may not be what runs."""
    own = ("start", "advance", "fork", "edit", "serving")
    if issubclass(processor, ChainLogitProcessor) and any(
        getattr(processor, name) is not getattr(ChainLogitProcessor, name) for name in own
    ):
        raise Unsupported(
            "custom_logit_processor: expected a processor that this server's operator can decide "
            f"on, got {processor.__name__}, a chain of its own kind; send ChainLogitProcessor"
        )


def _is_thinking(processor: type[LogitProcessor]) -> bool:
    return issubclass(processor, ThinkingBudgetLogitProcessor)


def _fields(processor: type[LogitProcessor]) -> Sequence[str]:
    """Return the parameters that are known by name."""
    return () if issubclass(processor, AdaptedProcessor) else processor.Params.__struct_fields__


def _takes(processor: type[LogitProcessor], name: str) -> bool:
    return (
        issubclass(processor, AdaptedProcessor)
        or name in processor.Params.__struct_fields__
        or name in processor.Params.renamed
        or issubclass(processor, ChainLogitProcessor)
    )


def _parse(processor: type[LogitProcessor], given: Any, served: ServedModel) -> Link:
    """Check parameters by the schema of their class."""
    return Link(processor, processor.parse_params(given, served.vocab_size))


def _fit(link: Link, served: ServedModel) -> Link:
    """Check parameters against the served model, and fill in what only it knows."""
    return link._replace(params=fit(link.processor, link.params, served))


def _same(one: Sequence[Link], other: Sequence[Link]) -> bool:
    return len(one) == len(other) and all(
        a.params is b.params for a, b in zip(one, other, strict=True)
    )


def _public(given: Any) -> Mapping[str, Any]:
    """Return what of ``custom_params`` is the client's."""
    if not isinstance(given, Mapping):
        return {}
    return {name: value for name, value in given.items() if not is_private(name)}


@contextmanager
def _naming(where: str, later: frozenset[str] = frozenset()) -> Iterator[None]:
    """Turn a refusal into an error of the policy that names the place.

    Args:
        where: The place.
        later: Parameters that a request has still to give.

    Raises:
        PolicyError: In place of a ``RequestError``.
    """
    try:
        yield
    except RequestError as error:
        if not (isinstance(error, InvalidParameter) and error.parameter in later):
            raise PolicyError(f"{where}: {error}") from None
