"""Ids of items out of a catalogue, with or without text around them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from msgspec import Meta

from sglang_lp.errors import InvalidParameter, RequestError, SglangLpError, shown
from sglang_lp.params import FewTokenIds, Parameters, PositiveInt, Text
from sglang_lp.processor import LogitProcessor, lasting
from sglang_lp.served_model import ends_for
from sglang_lp.text.automaton import SequenceIds
from sglang_lp.text.encoding import check_texts
from sglang_lp.text.triggers import text_trigger, token_trigger

if TYPE_CHECKING:
    from sglang_lp.catalogue.allowed import AllowedItems
    from sglang_lp.catalogue.opened import Catalogue
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.triggers import Trigger

#: Most item ids of a list. They are looked up before the request begins (benchmarks/bounds,
#: catalogue-excluded).
MAX_ITEM_IDS = 10_000

#: Most groups of sets, and most characters of a group or of a catalogue's name.
_MAX_GROUPS, _MAX_GROUP = 16, 1_024
#: Most names of sets in all groups together.
_MOST_SETS = 64

#: Most tokens that may come before a sleeping request reads them.
_LONGEST_SLEEP = 128

#: Most names that a message lists.
_LISTED = 8

ItemIds = Annotated[tuple[int | str, ...], Meta(max_length=MAX_ITEM_IDS)]
Subset = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=_MAX_GROUP)], ...],
    Meta(max_length=_MAX_GROUPS),
]


class ItemChoice(NamedTuple):
    """The items that one request may get.

    Attributes:
        catalogue: The version that it gets them from.
        allowed: The items.
        unknown: Number of ids of the request that this version lacks.
        rules: Name of the catalogue, the groups of ``subset``, ``exclude`` and ``only``.
    """

    catalogue: Catalogue
    allowed: AllowedItems
    unknown: int
    rules: tuple[Hashable, ...]


class _ItemProgress:
    """The progress of the output through its items.

    Attributes:
        choice: The items that may come.
        trigger: Begins an item; ``None`` if items follow each other.
        begun: State of the trigger: how much of it has come; ``None`` without a trigger.
        node: Node of the item that is being written; ``None`` in the text around items.
        depth: Depth of the node.
        done: Number of items that are written.
        is_last: Whether no more items come.
    """

    __slots__ = ("__weakref__", "begun", "choice", "depth", "done", "is_last", "node", "trigger")

    def __init__(self, choice: ItemChoice, trigger: Trigger | None) -> None:
        self.choice = choice
        self.trigger = trigger
        self.done = 0
        self.is_last = False
        self._begin()

    def _begin(self) -> None:
        """Go to the place before an item, or before its trigger."""
        self.begun = None if self.trigger is None else self.trigger.start
        self.node: int | None = 0 if self.trigger is None else None
        self.depth = 0

    def step(self, token_id: int, max_items: int) -> int | None:
        """Follow a token; return the rank of the item that it completes, if it completes one.

        Raises:
            RequestError: It leads to no item that the request may get.
        """
        if self.is_last:
            return None
        if self.node is None:
            self.begun = self.trigger.step(self.begun, token_id)  # type: ignore[union-attr]
            if self.begun is None:
                self.node = 0
            return None
        allowed = self.choice.allowed
        node = allowed.child(self.node, self.depth, token_id)
        if node < 0:
            index = self.choice.catalogue.index
            raise RequestError(
                f"catalogue: expected a token that leads to an item that this request may get, got "
                f"{token_id}; if the answer resumes another answer, the begun answer was written "
                f"with another version than {index.version}, or with other rules: ask for it anew"
            )
        self.node = node
        self.depth += 1
        if not allowed.index.is_item(node):
            return None
        self.done += 1
        self.is_last = self.done == max_items
        self._begin()
        return allowed.index.rank(node)


class CatalogueLogitProcessor(LogitProcessor):
    """Let the model write items of a catalogue: sequences of tokens that the operator listed.

    Inside an item only tokens that lead to an item keep their logits, so the model's own
    probabilities choose among these. The operator names catalogues in the policy, and a request
    names one of them. ``subset``, ``exclude`` and ``only`` leave items out, exactly at every token.

    Without a trigger the answer begins with an item. With ``trigger``, a text as the client gets
    it, or with ``trigger_token_ids``, the model writes freely up to the token that completes the
    trigger; an item follows right after it, and after the item the model writes freely again.

    After the last item the answer ends, unless ``ends_answer`` is false. Where items differ in
    length, one end token of the model comes first. The report of the answer has the ids of the
    items.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    finishes = True
    example: ClassVar[Mapping[str, Any]] = {
        "catalogue": "products",
        "subset": ["fresh", "eu|uk"],
        "exclude": ["sku-17"],
    }

    class Params(Parameters, frozen=True):
        """The parameters of a request.

        Attributes:
            catalogue: Name of a catalogue of the server's policy.
            subset: Names of sets; an item has to be in all of them. An entry may list alternatives:
                ``"eu|uk"`` is either set.
            exclude: Ids of items that the answer must not have. Ids that the catalogue lacks are
                counted in the report.
            only: Ids of the only items that the answer may have; the other parameters still leave
                items out of these. Left out: all.
            trigger: The text that an item follows, of up to 256 characters, whichever tokens spell
                it.
            trigger_token_ids: The tokens that an item follows, one after the other.
            max_items: Number of items; with a trigger, the most.
            ends_answer: Whether the answer ends after the last item; otherwise the model
                continues freely.
            scores: What the score of a beam is made of: ``"model"``, the model's own probabilities
                of an item's tokens, or ``"among"``, their probabilities among the tokens that lead
                to an item.
            eos_token_ids: Tokens that end the answer where items differ in length; one of them is
                enough. Left out: the end tokens of the served model.
        """

        catalogue: Annotated[str, Meta(min_length=1, max_length=_MAX_GROUP)]
        subset: Subset = ()
        exclude: ItemIds = ()
        only: ItemIds | None = None
        trigger: Text | None = None
        trigger_token_ids: SequenceIds | None = None
        max_items: PositiveInt = 1
        ends_answer: bool = True
        scores: Literal["model", "among"] = "model"
        eos_token_ids: FewTokenIds | None = None

        def __post_init__(self) -> None:
            """Refuse two triggers."""
            if self.trigger is not None and self.trigger_token_ids is not None:
                raise ValueError("trigger_token_ids: given together with trigger; give one")
            check_texts("trigger", [self.trigger or ""])

    class Fitted(Params, frozen=True):
        """Parameters with the items that they allow.

        Attributes:
            choice: The items.
            compiled: The compiled trigger, or ``None``.
            eos_token_ids: ``None`` if no end token is needed, because the last token of the last
                item ends the answer, or because the answer goes on.
        """

        choice: Any = None
        compiled: Any = None

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Find the items in the newest version of the catalogue.

        Raises:
            InvalidParameter: The server has no such catalogue or set, or nothing is left.
        """
        catalogue = served.catalogues.get(params.catalogue)
        if catalogue is None:
            raise InvalidParameter(
                cls.__name__,
                "catalogue",
                f"expected a catalogue of this server, which has {_listed(served.catalogues)}, "
                f"got {shown(params.catalogue)}",
            )
        choice = cls._choose(params, catalogue)
        if not choice.allowed.total:
            raise InvalidParameter(
                cls.__name__,
                None,
                f"expected rules that leave an item of {params.catalogue} (version "
                f"{catalogue.index.version}), got none: subset, exclude and only leave nothing "
                "together; leave out one of them",
            )
        ends = None
        if params.ends_answer and catalogue.index.shape.ragged:
            ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids, served)
        return cls.Fitted(
            catalogue=params.catalogue,
            trigger=params.trigger,
            trigger_token_ids=params.trigger_token_ids,
            max_items=params.max_items,
            ends_answer=params.ends_answer,
            scores=params.scores,
            choice=choice,
            compiled=cls._trigger(params, served.tokenizer),
            eos_token_ids=ends,
        )

    @classmethod
    def _choose(cls, params: Any, catalogue: Catalogue) -> ItemChoice:
        """Return the items that the rules of a request leave.

        Raises:
            InvalidParameter: A set that the request may not name, or ids of the wrong type.
        """
        groups = [one.split("|") for one in params.subset]
        if sum(map(len, groups)) > _MOST_SETS:
            raise InvalidParameter(
                cls.__name__,
                "subset",
                f"expected at most {_MOST_SETS} names of sets, got {sum(map(len, groups))}",
            )
        for name in (name for group in groups for name in group):
            if name not in catalogue.sets:
                raise InvalidParameter(
                    cls.__name__,
                    "subset",
                    f"expected sets that requests may name in {catalogue.name}, which has "
                    f"{_listed(catalogue.sets)}, got {shown(name)}",
                )
        wanted = frozenset(map(frozenset, groups))
        rules = catalogue.name, wanted, params.exclude, params.only
        found: ItemChoice | None = catalogue.chosen.get(rules)
        if found is None:
            left = cls._restricted(params, catalogue, catalogue.within(wanted))
            found = ItemChoice(catalogue, *left, rules)
            catalogue.chosen.keep(rules, found)
        return found

    @classmethod
    def _restricted(
        cls, params: Any, catalogue: Catalogue, allowed: AllowedItems
    ) -> tuple[AllowedItems, int]:
        """Return the items that ``exclude`` and ``only`` leave, and the number of unknown ids."""
        if not params.exclude and params.only is None:
            return allowed, 0
        left_out, unknown = cls._ranks("exclude", params.exclude, catalogue)
        chosen = None
        if params.only is not None:
            chosen, missing = cls._ranks("only", params.only, catalogue)
            unknown += missing
        return allowed.restrict(left_out, chosen), unknown

    @classmethod
    def _ranks(cls, name: str, ids: tuple[int | str, ...], catalogue: Catalogue) -> Any:
        """Return the ranks of the items with some ids, and the number of unknown ids."""
        try:
            return catalogue.index.ranks_of(ids)
        except SglangLpError as error:
            raise InvalidParameter(cls.__name__, name, str(error)) from None

    @classmethod
    def _trigger(cls, params: Any, tokenizer: Any) -> Trigger | None:
        if params.trigger is not None:
            return text_trigger(cls.__name__, "trigger", tokenizer, params.trigger)
        if params.trigger_token_ids is not None:
            return token_trigger(params.trigger_token_ids)
        return None

    def serving(self, params: Any) -> Self:
        """Return a processor whose flags say whether it ends answers, and how beams are scored."""
        made = type(self)()
        made.finishes = params.ends_answer
        made.renormalizes = params.scores == "among"
        return made

    def start(self, request: Request) -> _ItemProgress:
        """Begin before the first item, or before its trigger."""
        progress = _ItemProgress(request.params.choice, request.params.compiled)
        progress.choice.catalogue.users.add(progress)
        return progress

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the items and triggers."""
        for token_id in token_ids:
            request.state.step(token_id, request.params.max_items)

    def fork(self, request: Request) -> _ItemProgress:
        """Copy the state; the items are shared."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Allow the tokens that lead to an item, or end the answer."""
        progress, params = request.state, request.params
        if progress.is_last:
            if params.eos_token_ids:
                edits.allow_only(params.eos_token_ids)
                edits.finish(_reason(progress.done))
            else:
                edits.rest()
        elif progress.node is None:
            # The trigger cannot be complete earlier. A long sleep would make one step read much.
            lacking = progress.trigger.lacking(progress.begun)
            edits.wake_at(request.position + min(lacking, _LONGEST_SLEEP))
        else:
            edits.allow_only(_tokens_after(progress))
            shape = progress.choice.allowed.index.shape
            if (
                params.ends_answer
                and not shape.ragged
                and progress.depth == shape.levels - 1
                and progress.done + 1 == params.max_items
            ):
                edits.finish(_reason(params.max_items))

    def foresee(self, request: Request) -> Iterator[int]:
        """Name the tokens up to the first place with more than one allowed token."""
        progress = copy(request.state)
        done = progress.done
        while not progress.is_last and progress.node is not None and progress.done == done:
            allowed = _tokens_after(progress)
            if len(allowed) != 1:
                return
            (token_id,) = allowed
            yield token_id
            progress.step(token_id, request.params.max_items)

    def explain(self, request: Request) -> str:
        """Say which item and which of its tokens comes next."""
        progress = request.state
        if progress.node is None or progress.is_last:
            return ""
        return f"token {progress.depth + 1} of item {progress.done + 1}"

    def report(
        self,
        params: Any,
        prompt_ids: Sequence[int],  # noqa: ARG002 - items are in the answer
        output_ids: Sequence[int],
        forced: Sequence[Sequence[int]],  # noqa: ARG002 - the edit log has them
    ) -> dict[str, Any]:
        """Return the catalogue, its version and the ids of the items in the answer."""
        choice: ItemChoice = params.choice
        index = choice.catalogue.index
        progress = _ItemProgress(choice, params.compiled)
        items = []
        for token_id in output_ids:
            try:
                rank = progress.step(token_id, params.max_items)
            except RequestError:  # the answer ended with this error
                break
            if rank is not None:
                items.append(index.ids_of(rank))
        found: dict[str, Any] = {
            "name": choice.catalogue.name,
            "version": index.version,
            "items": items,
        }
        if choice.unknown:
            found["unknown_ids"] = choice.unknown
        return {"catalogue": found}


def _tokens_after(progress: _ItemProgress) -> Collection[int]:
    """Return the tokens that may come next in an item: the same object while it is cached."""
    return _kept(progress.choice.allowed, progress.node, progress.depth)


def _kept(allowed: AllowedItems, node: int | None, depth: int) -> Collection[int]:
    """Return the tokens after a node, from the cache of the allowed items or into it."""

    def put_together(node: int) -> Collection[int]:
        if allowed.whole is not None and not allowed.restricts(node):
            # Usually nothing is left out here, so all requests share one long list.
            return _kept(allowed.whole, node, depth)
        return lasting(allowed.tokens(node, depth))

    return allowed.kept.of(node, put_together)


def _reason(items: int) -> str:
    return f"catalogue: {items} item{'s' if items != 1 else ''}"


def _listed(names: Collection[str]) -> str:
    """Return some names for a message."""
    some = sorted(names)[:_LISTED]
    return ", ".join(map(shown, some)) + (", ..." if len(names) > _LISTED else "") or "none"
