"""A policy's decisions, applied to one request at a time, with the same result in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp import builtins
from sglang_lp.adapters import as_processor
from sglang_lp.builtins import ChainLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.builtins.chain import MAX_CHAIN
from sglang_lp.errors import (
    InvalidParameter,
    PayloadRefused,
    PolicyError,
    RefusalReason,
    RequestError,
    did_you_mean,
    shown,
)
from sglang_lp.links import fit, parse_links
from sglang_lp.params import is_private
from sglang_lp.policy.ceilings import check_names, lower, lower_arguments
from sglang_lp.policy.chosen import (
    fields_of,
    load_always,
    load_choice,
    load_profile,
    open_fields_of,
)
from sglang_lp.policy.fields import ASKED_FIELDS, ENGINE_FIELDS
from sglang_lp.policy.thinking import (
    BUDGET,
    ProposedBudgets,
    ThinkingRules,
    begin_inside,
    follows_thinking,
    read_bare_budget,
    thinks,
)
from sglang_lp.served_model import UNKNOWN

if TYPE_CHECKING:
    from sglang_lp.links import Link
    from sglang_lp.policy.sections import Decisions
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.served_model import ReasoningFormat, ServedModel


class Asked(NamedTuple):
    """The fields of a request that the rules read.

    Attributes:
        runs: The class that its ``custom_logit_processor`` names, as it was found on the allow
            list; or the name of a profile; or ``None``.
        custom_params: Its ``custom_params``, or ``None``.
        field: The thinking budget, in tokens, that another field of the request asks for.
        effort: The level of effort that it asks for.
        reasoning: Whether SGLang splits its answer by the served reasoning parser.
        resumed: Number of tokens at the end of its prompt that are the beginning of its answer.
        fields: Other engines' fields that it has, each with its value.
    """

    runs: type[LogitProcessor] | str | None
    custom_params: Any = None
    field: int | None = None
    effort: str | None = None
    reasoning: bool = False
    resumed: int = 0
    fields: tuple[tuple[str, Any], ...] = ()


class Decided(NamedTuple):
    """The processors that run for a request.

    Attributes:
        links: The processors in this order: of the request, its profile or the default; of its
            fields; the thinking budget, if it was added; of ``[[always]]``. Their parameters fit
            the served model.
        names: Names of the processors that the client may know of.
        resumed: Number of resumed tokens that any of them treats as generated.
    """

    links: tuple[Link, ...]
    names: tuple[str, ...]
    resumed: int = 0


class _Requested(NamedTuple):
    """The processors of a request before the operator's limits.

    Attributes:
        links: The processors.
        budgets: The thinking budgets that the request and the policy propose for it.
    """

    links: list[Link]
    budgets: ProposedBudgets


class Rules:
    """The decisions of a policy, checked as far as that is possible without the served model.

    Args:
        decisions: The decisions of the policy.
        find: Returns an allowed class by its name ``module:Class``, for processors that fields of a
            request ask for; raises ``RequestError``.
        allowed: All of these classes, except those of pins that no request has sent yet.

    Attributes:
        is_empty: Whether there are no decisions: requests run the processors that they name.
        preferred: Names of the parameters that the server itself adds to each request.

    Raises:
        PolicyError: A class cannot be imported or served, or a parameter does not fit it.
    """

    def __init__(
        self, decisions: Decisions, find: Callable[[Any], type], allowed: Iterable[type[Any]] = ()
    ) -> None:
        self._decisions = decisions
        self._find: Callable[[Any], type[LogitProcessor]] = lambda text: as_processor(find(text))
        self.is_empty = decisions.is_empty
        self.preferred: frozenset[str] = frozenset()
        self._levels = decisions.levels
        #: The processors of ``[[always]]``, fitted for each format of reasoning that the served
        #: model can have. Without ``where`` they hold everywhere, also in an answer that SGLang
        #: splits.
        self._always: dict[ReasoningFormat | None, list[Link]] = {}
        self._always_chosen = [
            load_always(chosen, f"always[{index}]") for index, chosen in enumerate(decisions.always)
        ]
        self._default = load_choice(decisions.defaults, "defaults") if decisions.defaults else None
        self._profiles = {
            name: load_profile(profile, f"profiles.{name}")
            for name, profile in decisions.profiles.items()
        }
        for name in decisions.profiles:
            if name in builtins.__all__:
                raise PolicyError(f"profiles.{name}: a built-in has this name; choose another name")
        self._thinking = ThinkingRules(decisions, self._default)
        known = [*allowed, *(getattr(builtins, name) for name in builtins.__all__)]
        known += [processor for processor, _ in self._always_chosen]
        known += [one.processor for profile in self._profiles.values() for one in profile.choices]
        known += [self._default.processor] if self._default else []
        check_names(decisions.ceilings, known)
        self.fit(UNKNOWN)

    def has_profile(self, payload: object) -> bool:
        """Tell whether a request's payload is the name of a profile."""
        return type(payload) is str and payload in self._profiles

    @property
    def profile_names(self) -> Iterable[str]:
        """The names of the profiles."""
        return self._profiles

    @property
    def chosen_names(self) -> Iterator[str]:
        """Class names of the processors of ``[defaults]`` and of profiles."""
        choices = [one for profile in self._profiles.values() for one in profile.choices]
        for processor, params in [*choices, *([self._default] if self._default else [])]:
            yield processor.__name__
            if issubclass(processor, ChainLogitProcessor):
                yield from (name.rpartition(":")[2] for name in params.get("chain", ()))

    @property
    def reads_effort(self) -> bool:
        """Whether the efforts of requests count."""
        return self._decisions.reads_effort

    @property
    def reads_fields(self) -> bool:
        """Whether budgets in other fields of a request count."""
        return self._decisions.reads_budgets

    def reads(self, field: str) -> bool:
        """Tell whether one of other engines' fields counts."""
        return self._decisions.fields.get(field, True)

    def fit(self, served: ServedModel) -> None:
        """Check every decision against the served model, and make the ``[[always]]`` processors.

        Args:
            served: The model.

        Raises:
            PolicyError: A decision cannot work with this model.
        """
        self._always = {}
        for one in served.by_effort() if self._always_chosen else ():
            links = self._always.setdefault(one.reasoning, [])
            for index, choice in enumerate(self._always_chosen):
                with _naming(f"always[{index}]"):
                    link = fit(parse_links(*choice, one.vocab_size)[0], one)
                    links.append(link._replace(is_named=False))
        with _naming(self._thinking.place):
            self._thinking.fit(served)
        if self._default is not None:
            with _naming("defaults"):
                self.decide(Asked(None), served)
        for name, profile in self._profiles.items():
            with _naming(f"profiles.{name}", profile.may_set):
                self.decide(Asked(name), served)

    def decide(self, asked: Asked, served: ServedModel) -> Decided | None:
        """Return the processors that run for a request; ``None`` for no processor.

        Args:
            asked: Fields of the request.
            served: The model.

        Raises:
            RequestError: Refused.
        """
        if asked.reasoning and served.reasoning is not None:
            served = served._replace(splits=True)
        decided: Decided | None
        runs, asks_more = asked.runs, asked.field is not None or asked.fields
        if self.is_empty and isinstance(runs, type) and not asks_more:
            own = parse_links(runs, asked.custom_params, served.vocab_size)
            links = tuple(fit(link, served) for link in own)
            decided = Decided(links, tuple(link.processor.__name__ for link in links))
        else:
            decided = self._decide(asked, served)
        if decided is None:
            return None
        form = served.reasoning
        inside = form is not None and served.splits and form.can_begin_inside
        if inside:
            decided = decided._replace(links=tuple(map(begin_inside, decided.links)))
        return self._resume(decided, asked.resumed, inside=inside) if asked.resumed else decided

    def _resume(self, decided: Decided, resumed: int, *, inside: bool) -> Decided:
        """Let the processors of a request, but not the operator's, count the resumed tokens.

        To these processors the resumed tokens are part of the prompt:

        - those of ``[[always]]``, unless the policy has ``may_resume``;
        - processors that depend on thinking, if SGLang's parser reads the answer without the
          resumed tokens.

        Args:
            decided: All processors that run.
            resumed: Number of tokens to resume.
            inside: Whether SGLang's parser reads an answer without a start as reasoning.
        """
        every = decided.links
        always = len(every) if self._decisions.may_resume else len(every) - len(self._always_chosen)
        begins = [
            place >= always or (inside and follows_thinking(one)) for place, one in enumerate(every)
        ]
        if all(begins):
            return decided
        links = (
            link._replace(skipped=resumed if begin else 0)
            for link, begin in zip(every, begins, strict=True)
        )
        return decided._replace(links=tuple(links), resumed=resumed)

    def _decide(self, asked: Asked, served: ServedModel) -> Decided | None:
        """Apply the decisions: ceilings, then the thinking budget, then ``[[always]]``."""
        own = self._requested(asked, served)
        asked_for = [*own.links, *self._of_fields(asked.fields, own.links, served)]
        own = own._replace(
            links=[lower_arguments(link, self._decisions.ceilings) for link in asked_for]
        )
        # Fitted first, because fitting turns texts into the tokens that ceilings count.
        fitted = [fit(link, served) for link in own.links]
        links = []
        for given, link in zip(own.links, fitted, strict=True):
            counting = self._thinking.hold_counting(link, given, served)
            links.append(lower(counting, self._thinking.ceilings_on(link)))
        if self._thinking.adds_asked_budget(links, own.budgets):
            self._find_named(BUDGET, ThinkingBudgetLogitProcessor)
        links = self._thinking.limit(links, own.budgets, served)
        always = self._always[served.reasoning] if self._always_chosen else []
        every = [*links, *always]
        if not every:
            return None
        return Decided((*every,), tuple(link.processor.__name__ for link in links))

    def _requested(self, asked: Asked, served: ServedModel) -> _Requested:
        """Return the processors that a request names, or the default."""
        effort = self._levels.get(asked.effort or "")
        if isinstance(asked.runs, str):
            return self._of_profile(asked.runs, asked, effort, served)
        given = asked.custom_params
        if asked.runs is not None:
            processor = asked.runs
            links = parse_links(processor, given, served.vocab_size)
            budget = next((link.params for link in links if thinks(link)), None)
            if budget is None:
                return _Requested(links, ProposedBudgets(field=asked.field, effort=effort))
            default = self._thinking.default_budget
            budgets = ProposedBudgets(budget.thinking_budget, asked.field, effort, default)
            return _Requested(links, budgets)
        own = read_bare_budget(_public(given))
        fields = open_fields_of(self._default.processor) if self._default is not None else ()
        self._check_taken(_public(given), fields)
        if self._default is None:
            return _Requested([], ProposedBudgets(own, asked.field, effort))
        processor, params = self._default
        set_too = {k: v for k, v in _public(given).items() if k in fields and v is not None}
        links = parse_links(processor, {**params, **set_too}, served.vocab_size)
        return _Requested(links, ProposedBudgets(own, asked.field, effort, _budget_of(links)))

    def _of_fields(
        self, fields: Iterable[tuple[str, Any]], links: Sequence[Link], served: ServedModel
    ) -> Iterator[Link]:
        """Yield the processors that other engines' fields ask for, next to those of a request.

        Args:
            fields: The fields, each with its value.
            links: The other processors of the request.
            served: The model.

        Raises:
            RequestError: A processor is not allowed, its value does not fit, or there are more
                processors than a chain may have.
        """
        kinds = [link.processor for link in links]
        for name, value in fields:
            field = ENGINE_FIELDS[name]
            processor = self._find_named(name, field.processor)
            ChainLogitProcessor.check_link(processor, kinds)
            kinds.append(processor)
            # A field that SGLang takes by itself is not refused for the number of processors.
            if len(kinds) > MAX_CHAIN and not field.is_sglangs:
                raise RequestError(
                    f"{name}: expected at most {MAX_CHAIN} processors in one request, got "
                    f"{len(kinds)} with those of its fields; leave some out"
                )
            try:
                given = field.params(value, served)
                (link,) = parse_links(processor, given, served.vocab_size)
            except InvalidParameter as error:
                raise RequestError(f"{name}: {error.problem}") from None
            yield link

    def _check_taken(self, given: Mapping[str, Any], fields: Sequence[str]) -> None:
        """Refuse parameters of a request without a processor that nothing takes.

        Args:
            given: The client's ``custom_params``.
            fields: Parameters of the default, which a request may set.

        Raises:
            RequestError: With the nearest name that something takes.
        """
        for name in given:
            if name in fields or name == BUDGET or name in self.preferred:
                continue
            todo = did_you_mean(name, [*fields, BUDGET]) or (
                "; name its processor in custom_logit_processor, or leave it out"
            )
            raise RequestError(
                f"custom_params: no processor of this request takes {shown(name)}{todo}"
            )

    def _find_named(self, field: str, processor: type[LogitProcessor]) -> type[LogitProcessor]:
        """Return the built-in that runs for a field of a request.

        Args:
            field: Name of the field, for the message.
            processor: The built-in.

        Raises:
            PayloadRefused: This server does not allow it.
        """
        try:
            return self._find(f"{processor.__module__}:{processor.__name__}")
        except PayloadRefused as refused:
            raise PayloadRefused(
                f"{field}: expected none, as this server does not allow {processor.__name__}; "
                "leave it out, or ask the operator to allow it",
                reason=RefusalReason.NOT_ALLOWED,
                size=refused.size,
            ) from None

    def _of_profile(
        self, name: str, asked: Asked, effort: int | None, served: ServedModel
    ) -> _Requested:
        """Return the processors of a profile, with the parameters that it lets the request set."""
        profile = self._profiles[name]
        given = _public(asked.custom_params)
        others = [name for name, _ in asked.fields if name in ASKED_FIELDS]
        asks = [*given, *([] if asked.field is None else [BUDGET]), *others]
        known = {name for one in profile.choices for name in fields_of(one.processor)}
        unknown = given.keys() - known  # such as a field in the wrong place
        for asks_for in asks:
            if asks_for not in profile.may_set or asks_for in unknown:
                allowed = ", ".join(sorted(profile.may_set)) or "no parameter"
                where = "" if asks_for in given else ", in a field of the request"
                raise InvalidParameter(
                    name,
                    None,
                    f"this profile lets a request set {allowed}, got {shown(asks_for)}{where}"
                    f"{did_you_mean(asks_for, profile.may_set)}",
                )
        links = []
        for processor, params in profile.choices:
            fields = fields_of(processor)
            own = {key: value for key, value in given.items() if key in fields}
            if own.get(BUDGET, 0) is None:
                del own[BUDGET]  # as if left out
            links += parse_links(processor, {**params, **own}, served.vocab_size)
        budget = _budget_of(links)
        if BUDGET not in profile.may_set:
            return _Requested(links, ProposedBudgets(default=budget))
        asked_for = None if given.get(BUDGET) is None else budget
        return _Requested(links, ProposedBudgets(asked_for, asked.field, effort, budget))


def _budget_of(links: Iterable[Link]) -> int | None:
    """Return the number of the thinking budget among some links, if there is one."""
    return next((link.params.thinking_budget for link in links if thinks(link)), None)


def _public(given: Any) -> Mapping[str, Any]:
    """Return the client's own entries of ``custom_params``."""
    if not isinstance(given, Mapping):
        return {}
    return {name: value for name, value in given.items() if not is_private(name)}


@contextmanager
def _naming(where: str, later: frozenset[str] = frozenset()) -> Iterator[None]:
    """Turn a refusal into an error of the policy that names the place.

    Args:
        where: The place.
        later: Parameters that a request may set; a refusal of one of them is no error, because the
            request may bring the value that is missing.

    Raises:
        PolicyError: In place of a ``RequestError``.
    """
    try:
        yield
    except RequestError as error:
        if not (isinstance(error, InvalidParameter) and error.parameter in later):
            raise PolicyError(f"{where}: {error}") from None
