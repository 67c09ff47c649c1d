"""Thinking budgets: which one a request gets, and the operator's ceilings on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.params import BudgetParams, finder_of
from sglang_lp.errors import InvalidParameter, PolicyError
from sglang_lp.links import fit, parse_links, serve_again
from sglang_lp.params import replaced
from sglang_lp.policy.ceilings import refusal
from sglang_lp.policy.sections import Above, Ceiling, Decisions
from sglang_lp.served_model import UNKNOWN

if TYPE_CHECKING:
    from sglang_lp.links import Link, Serving
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.served_model import ReasoningFormat, ServedModel

#: The parameter for one thinking block.
BUDGET = "thinking_budget"
#: The parameter for all thinking blocks of an answer together.
TOTAL = "total_thinking_tokens"


def is_thinking_budget(processor: type[Any]) -> bool:
    """Tell whether a class limits thinking."""
    return issubclass(processor, ThinkingBudgetLogitProcessor)


def thinks(link: Link) -> bool:
    """Tell whether a link limits thinking."""
    return is_thinking_budget(link.processor)


def read_bare_budget(given: Mapping[str, Any]) -> int | None:
    """Return the ``thinking_budget`` of a request that names no processor.

    Args:
        given: The client's ``custom_params``.

    Raises:
        InvalidParameter: It is not a budget.
    """
    if given.get(BUDGET) is None:
        return None
    (parsed,) = parse_links(ThinkingBudgetLogitProcessor, {BUDGET: given[BUDGET]})
    return parsed.params.thinking_budget  # type: ignore[no-any-return]


class ProposedBudgets(NamedTuple):
    """Thinking budgets that are proposed for one request; the first that is not ``None`` counts.

    A negative number means no limit.

    Attributes:
        own: The request's own parameter.
        field: A field of the request that is a budget, such as Anthropic's ``budget_tokens``.
        effort: The operator's budget for the level of effort that the request asks for.
        default: The operator's budget for requests that ask for nothing.
    """

    own: int | None = None
    field: int | None = None
    effort: int | None = None
    default: int | None = None

    @property
    def asked(self) -> int | None:
        """The budget that the request itself gives."""
        return self.field if self.own is None else self.own


def decide_budget(proposed: ProposedBudgets, most: int | None) -> int | None:
    """Return the budget of a request: the first proposal, held to the ceiling.

    Args:
        proposed: The proposals.
        most: The ceiling on ``thinking_budget``, if there is one.

    Returns:
        Tokens, or ``None`` for no limit.
    """
    budget = next((one for one in proposed if one is not None), None)
    if budget is not None and budget < 0:
        budget = None
    if most is not None:
        budget = most if budget is None else min(budget, most)
    return budget


class ThinkingRules:
    """The operator's decisions on thinking.

    Args:
        decisions: All decisions of the policy.
        default: The processor of requests that name none, and its parameters, if there is one.

    Attributes:
        limits_all: Whether the operator limits the thinking of every request.
        default_budget: The budget of requests with a thinking budget that sets no number.
        place: Section of the policy that decides how thinking is limited, for messages.

    Raises:
        PolicyError: A ceiling on thinking is not a whole number of tokens.
    """

    def __init__(
        self, decisions: Decisions, default: tuple[type[LogitProcessor], dict[str, Any]] | None
    ) -> None:
        self._ceilings = decisions.ceilings
        self._other_ceilings = {
            name: ceiling for name, ceiling in decisions.ceilings.items() if name != BUDGET
        }
        self._answer_room = decisions.answer_room
        self._min_answer = decisions.min_answer_tokens
        self._ceiling = _ceiling_on(BUDGET, decisions)
        self._total = _ceiling_on(TOTAL, decisions)
        capped = self._ceiling is not None or self._total is not None
        #: The class and parameters of a budget that is added to a request.
        self._template: tuple[type[LogitProcessor], dict[str, Any]]
        self._template = ThinkingBudgetLogitProcessor, {}
        by_default = default is not None and is_thinking_budget(default[0])
        if default is not None and by_default:
            self._template = default
        self.default_budget: int | None = self._template[1].get(BUDGET)
        self.place = "defaults" if by_default else "thinking budgets"
        self.limits_all = by_default or decisions.reads_effort or capped
        #: The operator's own budget, by the format of the served model's reasoning.
        self._own: dict[ReasoningFormat | None, Any] = {}

    def fit(self, served: ServedModel) -> None:
        """Check the budgets against the served model, and learn its delimiters.

        Raises:
            RequestError: A budget cannot work with this model.
        """
        for one in served.by_effort() if self.limits_all else ():
            template = fit(parse_links(*self._template, one.vocab_size)[0], one)
            if one is not UNKNOWN:
                self._own[one.reasoning] = template.params
            self._with_budget(template, 0)

    def adds_asked_budget(self, links: list[Link], proposed: ProposedBudgets) -> bool:
        """Tell whether :meth:`limit` adds a budget for no other reason than the request's."""
        return proposed.asked is not None and not self.limits_all and not any(map(thinks, links))

    def ceilings_on(self, link: Link) -> Mapping[str, Ceiling]:
        """Return the ceilings on a link's numbers, without the one that :meth:`limit` applies."""
        return self._other_ceilings if thinks(link) else self._ceilings

    def limit(
        self, links: list[Link], proposed: ProposedBudgets, served: ServedModel
    ) -> list[Link]:
        """Put the decided thinking budget into its link, or add one.

        Args:
            links: The processors of a request.
            proposed: The budgets that are proposed for it.
            served: The model.

        Raises:
            InvalidParameter: The request asks for more than a ceiling that refuses.
        """
        if not self.limits_all and proposed.asked is None:
            return links
        place = next((i for i, link in enumerate(links) if thinks(link)), len(links))
        processor = links[place].processor if place < len(links) else self._template[0]
        most = self._most(processor, proposed.asked)
        budget = decide_budget(proposed, most)
        if place == len(links):
            if budget is None and self._total is None and not self._min_answer:
                return links
            links = [*links, fit(parse_links(*self._template, served.vocab_size)[0], served)]
        link = self._with_budget(links[place], budget)
        if self._total is not None:
            # The closing of the block that spends the total counts as well.
            total = max(0, int(self._total.at_most) - len(link.params.before_end))
            own = link.params.total_thinking_tokens
            # A number above the ceiling was lowered, or refused, as any other number.
            link = _replace(link, {TOTAL: total if own is None else min(own, total)})
        link = self._answering(link, served)
        return [*links[:place], link, *links[place + 1 :]]

    def _answering(self, link: Link, served: ServedModel) -> Link:
        """Give a budget the operator's room for the answer and minimum length of the answer.

        An answer that is to end in its block (``at_limit = "stop"``) stays as it is.
        """
        params = link.params
        room = max(params.answer_room, self._answer_room)
        least = max(params.min_answer_tokens, self._min_answer)
        asked = params.answer_room, params.min_answer_tokens
        if params.at_limit == "stop" or (room, least) == asked:
            return link
        link = _replace(link, {"answer_room": room, "min_answer_tokens": least})
        return fit(link, served)  # with the end tokens of the model

    def hold_counting(self, link: Link, given: Link, served: ServedModel) -> Link:
        """Under a ceiling, return a budget that counts the same tokens as the operator's own.

        Args:
            link: A processor of a request, fitted to the served model.
            given: The same processor as the request has it.
            served: The model.

        Raises:
            InvalidParameter: The request names other delimiters or other tool starts.
        """
        own = self._own.get(served.reasoning)
        no_ceiling = self._ceiling is None and self._total is None
        if no_ceiling or own is None or not thinks(link):
            return link
        counted, expected = finder_of(link.params), finder_of(own)
        if counted.delimiters == expected.delimiters:
            return link
        if (counted.start, counted.end) != (expected.start, expected.end):
            name = "thinking_start_token_id"
        elif given.params.tool_start_token_ids is not None:
            name = "tool_start_token_ids"
        else:  # the class has tool starts of its own
            starts = own.tool_start_token_ids or ()
            return fit(_replace(link, {"tool_start_token_ids": starts}), served)
        raise InvalidParameter(
            link.processor.__name__,
            name,
            "expected the served model's thinking delimiters and tool starts, for which this "
            "server has a ceiling; leave them out",
        )

    def _most(self, processor: type[LogitProcessor], asked: int | None) -> int | None:
        """Return the ceiling on thinking budgets; ``None`` for none.

        Raises:
            InvalidParameter: The request asks for more, and the ceiling refuses.
        """
        if self._ceiling is None:
            return None
        most = int(self._ceiling.at_most)
        if self._ceiling.above == Above.REFUSE and asked is not None and not 0 <= asked <= most:
            raise refusal(processor, BUDGET, most, asked)
        return most

    def _with_budget(self, link: Link, budget: int | None) -> Link:
        """Give a link its budget; under a ceiling the closing message counts as thinking."""
        if budget is None:
            if link.params.thinking_budget is None or link.params.thinking_budget < 0:
                return link
            return link._replace(params=msgspec.structs.replace(link.params, thinking_budget=None))
        if self._ceiling is not None:
            most = int(self._ceiling.at_most)
            message = len(link.params.closing_token_ids)
            if message > most:
                raise refusal(link.processor, "closing_token_ids", most, message)
            budget = max(0, min(budget, most - len(link.params.before_end)))
            if most == 0:
                link = _replace(link, {TOTAL: 0})  # no newline: blocks are closed with the end only
        return _with_budget(link, budget)


def _ceiling_on(name: str, decisions: Decisions) -> Ceiling | None:
    ceiling = decisions.ceilings.get(name)
    if ceiling and not (isinstance(ceiling.at_most, int) and ceiling.at_most >= 0):
        raise PolicyError(
            f"ceilings.{name}: expected a whole number of tokens, got {ceiling.at_most}"
        )
    return ceiling


def _with_budget(link: Link, budget: int) -> Link:
    """Give a link its budget, and hold its smaller numbers to it."""
    params = link.params
    soft = params.soft_thinking_budget
    soft = None if soft is None else min(soft, budget)
    least = min(params.min_thinking_tokens, budget if soft is None else soft)
    changes = {
        BUDGET: budget,
        "soft_thinking_budget": soft,
        "min_thinking_tokens": least,
        "wait_token_id": params.wait_token_id if least else None,
    }
    return _replace(link, changes)


def _replace(link: Link, changes: Mapping[str, Any]) -> Link:
    return link._replace(params=replaced(link.params, link.processor.__name__, **changes))


def with_answer_room(serving: Serving, tokens: int, limit: int) -> Serving:
    """Return a thinking budget that leaves room for an answer; any other processor as it is.

    Args:
        serving: Serves a request that has not begun.
        tokens: Tokens of the shortest answer, its end included.
        limit: Number of tokens after which the answer ends, resumed ones included.

    Raises:
        InvalidParameter: The answer may be empty, and ``min_answer_tokens`` excludes that.
    """
    params = serving.params
    if not isinstance(params, BudgetParams):
        return serving
    if params.min_answer_tokens and tokens == 1:
        raise InvalidParameter(
            "a thinking budget",
            "min_answer_tokens",
            "expected none with a grammar whose text may be empty; leave it out",
        )
    room = max(params.answer_room, tokens)
    return serve_again(serving, msgspec.structs.replace(params, answer_room=room), limit)


def closing_tokens(serving: Serving) -> int:
    """Return the number of tokens with which a thinking budget closes a block.

    Args:
        serving: The processor; any other than a budget closes none.
    """
    params = serving.params
    return len(finder_of(params).closing) if isinstance(params, BudgetParams) else 0


def follows_thinking(link: Link) -> bool:
    """Tell whether a link depends on which tokens are thinking."""
    return thinks(link) or link.phase is not None


def begin_inside(link: Link) -> Link:
    """Have the thinking begin with the first token, as the served reasoning parser has it."""
    if thinks(link):
        processor: Any = link.processor
        return link._replace(params=processor.begin_inside(link.params))
    phase: Any = link.phase
    return link if phase is None else link._replace(phase=phase.begin_inside())
