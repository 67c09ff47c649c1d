"""vLLM's V1 interface: one object for the engine, told what changed in the batch before each step.

The object has a batch of its own, whose rows stay where they are while SGLang merges, filters and
sorts: each step's logits are gathered in that order. A request that leaves is removed; one that
joins takes the lowest index that was freed, or the next index; an index that stays empty is filled
from the end, by moves. ``BatchUpdate`` lists these changes as vLLM does.

SGLang prefills some requests while the others wait, and vLLM's interface knows no request that
waits. The newcomers' first step therefore runs on a second object. When they join the others they
are added there, with the tokens they have, as vLLM adds a request that it had preempted. A request
that SGLang retracted is added in the same way. The others keep their rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import ref

from sglang_lp.adapters.vllm_config import is_greedy, make_params
from sglang_lp.adapters.vllm_names import name, vllm_names
from sglang_lp.adapters.vllm_processor import VllmProcessor
from sglang_lp.adapters.vllm_request import VllmAdapterProcessor
from sglang_lp.processor import check_computed

if TYPE_CHECKING:
    import torch

    from sglang_lp.adapters.adapted import AdaptedProcessor
    from sglang_lp.adapters.engine_settings import EngineSettings
    from sglang_lp.request import Request

_serials = count(1)


class Member:
    """A request in the batch of an object.

    Attributes:
        serial: A number of its own.
        params: vLLM's ``SamplingParams``, of which an object gets a copy.
        output_ids: For each object that the member was added to, by its identity, the list of
            generated tokens that grows there.
        greedy: Whether its likeliest token is taken.
        temperature: Its sampling temperature.
    """

    __slots__ = ("__weakref__", "greedy", "output_ids", "params", "serial", "temperature")

    def __init__(self, params: Any, sampling: Any) -> None:
        self.serial = next(_serials)
        self.params = params
        self.output_ids: dict[int, list[int]] = {}
        self.greedy = is_greedy(sampling)
        self.temperature: float = 1.0 if sampling is None else sampling.temperature


class Change(NamedTuple):
    """The changes of a batch: the fields of ``BatchUpdate``.

    Attributes:
        removed: Indices that became empty, largest first.
        added: Indices that were filled with newcomers, each with its newcomer.
        moved: Pairs of the old and the new index, in order.
    """

    removed: list[int]
    added: list[tuple[int, Any]]
    moved: list[tuple[int, int]]


class ObjectBatch:
    """The batch of one object: each member's row, without gaps, by weak references.

    Attributes:
        index: From the serial number of each member to its row.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, ref[Any]]] = []
        self.index: dict[int, int] = {}

    def shared(self, serials: Sequence[int]) -> int:
        """Return how many of these members are in the batch."""
        return sum(serial in self.index for serial in serials)

    @property
    def waiting(self) -> int:
        """Number of members that still exist, in this step or not."""
        return sum(member() is not None for _, member in self._rows)

    def change(self, members: Sequence[Any]) -> Change:
        """Make these the members of the batch; return the changes."""
        wanted = {member.serial for member in members}
        rows: list[tuple[int, ref[Any]] | None] = [
            row if row[0] in wanted else None for row in self._rows
        ]
        freed = deque(index for index, row in enumerate(rows) if row is None)
        added = []
        for member in members:
            if member.serial in self.index:
                continue
            if not freed:
                freed.append(len(rows))
                rows.append(None)
            index = freed.popleft()
            rows[index] = member.serial, ref(member)
            added.append((index, member))
        moved = []
        while freed:
            while rows and rows[-1] is None:
                rows.pop()
            if freed[0] >= len(rows):
                break
            target = freed.popleft()
            moved.append((len(rows) - 1, target))
            rows[target] = rows.pop()
        self._rows = [row for row in rows if row is not None]
        self.index = {serial: index for index, (serial, _) in enumerate(self._rows)}
        return Change([*reversed(freed)], added, moved)


class _BatchObject:
    """One object of the foreign class, and its batch.

    Attributes:
        processor: The object.
        members: Its batch.
        serials: Serial numbers of the rows of the step before, in SGLang's order.
        order: For each of these its row in the batch; ``None`` if it is the same order.
    """

    def __init__(self, cls: type[VllmV1Processor], engine: EngineSettings) -> None:
        self.processor = cls.make_v1_object(engine)
        self._vocab_size = engine.vocab_size
        self.members = ObjectBatch()
        self.serials: list[int] = []
        self.order: list[int] | None = None

    def update(
        self, serials: list[int], members: Sequence[Member], requests: Sequence[Request]
    ) -> None:
        """Pass the changes of the batch to the object."""
        if serials == self.serials:
            self.processor.update_state(None)
            return
        change = self.members.change(members)
        self.serials = serials
        order = [self.members.index[serial] for serial in serials]
        self.order = None if order == [*range(len(order))] else order
        module = VllmV1Processor.module
        one_way = name(module, "MoveDirectionality").UNIDIRECTIONAL
        of = dict(zip(serials, requests, strict=True)) if change.added else {}
        update = name(module, "BatchUpdate")(
            batch_size=len(members),
            removed=change.removed,
            added=[
                (index, *self._make_own(member, of[member.serial]))
                for index, member in change.added
            ],
            moved=[(source, target, one_way) for source, target in change.moved],
        )
        self.processor.update_state(update if any(change) else None)

    def _make_own(self, member: Member, request: Request) -> tuple[Any, list[int], list[int]]:
        """Return copies of parameters, prompt and output that the object may keep and change.

        Another object that had the member may have changed its own copies. SGLang's pad values are
        left out of the prompt.
        """
        output_ids = member.output_ids[id(self)] = [*request.output_ids]
        prompt_ids = [i for i in request.prompt_ids if 0 <= i < self._vocab_size]
        return deepcopy(member.params), prompt_ids, output_ids


class VllmV1Processor(VllmProcessor):
    """Runs a class of the V1 interface."""

    interface = "vllm-v1"
    calling = "vLLM's LogitsProcessor with update_state() and apply(), or AdapterLogitsProcessor"
    module = "vllm.v1.sample.logits_processor"

    _engine: ClassVar[EngineSettings]
    _objects: ClassVar[list[_BatchObject]]
    _invariant: ClassVar[bool]

    @classmethod
    def runner(cls, found: Any) -> type[AdaptedProcessor]:
        """Return the adapter of a class; an ``AdapterLogitsProcessor`` runs as its callables."""
        adapter = name(cls.module, "AdapterLogitsProcessor")
        if not issubclass(found, adapter):
            return cls
        own = ("apply", "update_state")
        overrides = any(getattr(found, one) is not getattr(adapter, one) for one in own)
        return cls if overrides else VllmAdapterProcessor

    @classmethod
    def begin(cls, engine: EngineSettings) -> None:
        cls._engine = engine
        cls._objects = [_BatchObject(cls, engine) for _ in range(2)]
        cls._invariant = bool(cls._objects[0].processor.is_argmax_invariant())

    def start(self, request: Any) -> Member:
        """Return the request as a member of a batch."""
        params = make_params(request.params.values, request.sampling, self._engine)
        return Member(params, request.sampling)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Add tokens to the lists that objects see."""
        for output_ids in request.state.output_ids.values():
            output_ids.extend(token_ids)

    def rewind(self, request: Any) -> None:
        """Become a new member, to be added anew: the object may have counted the dropped token."""
        request.state = Member(request.state.params, request.sampling)

    @vllm_names()
    def compute(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        custom_params: Sequence[Any],  # noqa: ARG002 - for classes of SGLang's contract
    ) -> torch.Tensor:
        """Pass the changes of the batch on, and let the object compute all rows, in float32."""
        members: list[Member] = [request.state for request in requests]
        serials = [member.serial for member in members]
        used = self._choose(serials)
        try:
            used.update(serials, members, requests)
            if self._invariant and all(member.greedy for member in members):
                return logits
            return self._apply(used, logits, members)
        except BaseException:
            # The object's state is unknown now: the other requests are added to a new object.
            self._objects[self._objects.index(used)] = _BatchObject(type(self), self._engine)
            raise

    def _choose(self, serials: list[int]) -> _BatchObject:
        """Return the object that has most of these members; for newcomers the smaller batch."""
        for one in self._objects:
            if one.serials == serials:
                return one
        return max(
            self._objects, key=lambda one: (one.members.shared(serials), -one.members.waiting)
        )

    def _apply(
        self, used: _BatchObject, logits: torch.Tensor, members: list[Member]
    ) -> torch.Tensor:
        import torch

        rows, order = logits.float(), used.order
        if order is not None:
            back = torch.tensor(order, device=rows.device)
            places = torch.empty_like(back).scatter_(0, back, torch.arange(len(order)).to(back))
            rows = rows[places]
            by_row = dict(zip(order, members, strict=True))
            members = [by_row[index] for index in range(len(order))]
        scale = None
        if self._invariant and any(member.temperature != 1.0 for member in members):
            # In vLLM such a class comes after the temperature.
            scale = rows.new_tensor([member.temperature for member in members])[:, None]
            rows /= scale
        result = used.processor.apply(rows)
        check_computed(result, logits, tuple(logits.shape))
        if scale is not None:
            result = result * scale
        computed: torch.Tensor = result if order is None else result[back]
        return computed
