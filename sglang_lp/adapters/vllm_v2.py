"""vLLM's V2 interface: one object for the engine, whose requests keep a slot as long as they run.

A step names the slot of each of its rows, so it does not matter which requests are in it. What a
request has generated stands in tensors on the device, by slot.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from sglang_lp._engine.batch import check_computed
from sglang_lp.adapters.vllm_config import make_params
from sglang_lp.adapters.vllm_engine import VllmProcessor
from sglang_lp.adapters.vllm_names import name
from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch

    from sglang_lp.adapters.engine import EngineSettings
    from sglang_lp.request import Request

__all__ = ["VllmV2Processor"]

_MODULE = "vllm.v1.worker.gpu.sample.logits_processor"
_NOTHING = (0,)
_steps = count(1)


class _Member:
    """A request of an object.

    Attributes:
        prompt_ids: The prompt, without SGLang's pad values.
        output_ids: Generated tokens.
        owner: The object that it was added to.
        slot: Its slot there.
        wanted: Whether the object wants its rows.
        behind: Whether more than its newest token is missing on the device.
        seen: Its last step.
    """

    __slots__ = (
        "__weakref__",
        "behind",
        "output_ids",
        "owner",
        "prompt_ids",
        "seen",
        "slot",
        "wanted",
    )

    def __init__(self, prompt_ids: list[int], output_ids: list[int]) -> None:
        self.prompt_ids = prompt_ids
        self.output_ids = output_ids
        self.owner: _Object | None = None
        self.slot = 0
        self.wanted = True
        self.behind = False
        self.seen = 0


class _Column:
    """A tensor of the engine's: ``gpu`` is on the device of the logits."""

    def __init__(self, gpu: torch.Tensor) -> None:
        self.gpu = gpu


class _Object:
    """One object of the foreign class, its slots and the tensors behind them."""

    def __init__(self, cls: Any, engine: EngineSettings) -> None:
        import torch

        def zeros(*shape: int) -> _Column:
            return _Column(torch.zeros(shape, dtype=torch.int32, device=engine.device))

        slots = engine.max_requests
        self._all = zeros(slots, engine.max_length)
        self._prompt, self._prefill, self._total = zeros(slots), zeros(slots), zeros(slots)
        self._free = [*range(slots)][::-1]
        self._taken: dict[int, ref[_Member]] = {}
        states = name(_MODULE, "LogitsProcRequestState")(
            device=torch.device(engine.device),
            max_num_reqs=slots,
            vocab_size=engine.vocab_size,
            all_token_ids=self._all,
            prompt_len=self._prompt,
            prefill_len=self._prefill,
            total_len=self._total,
        )
        self.processor = cls.make_engine_object(engine, states)

    def admit(self, member: _Member, params: Any) -> None:
        """Give a request a slot and add it there."""
        member.slot = slot = self._take(member)
        member.owner = self
        self._prompt.gpu[slot] = len(member.prompt_ids)
        self._prefill.gpu[slot] = self._write(member)
        member.wanted = bool(self.processor.add_request(slot, params))

    def _write(self, member: _Member) -> int:
        """Write all tokens of a request; return how many."""
        import torch

        tokens = torch.tensor(member.prompt_ids + member.output_ids, dtype=torch.int32)
        into = self._all.gpu
        into[member.slot, : len(tokens)] = tokens.to(into.device, non_blocking=True)
        member.behind = False
        return len(tokens)

    def _take(self, member: _Member) -> int:
        """Return a free slot; if there is none, that of whoever has not been in a step longest."""
        if not self._free:
            self._free = [slot for slot, one in self._taken.items() if one() is None]
        if not self._free:
            waiting = [one for reference in self._taken.values() if (one := reference())]
            longest = min(waiting, key=lambda one: one.seen)
            if longest.seen == member.seen:
                raise ProcessorFault(f"more than {len(self._taken)} requests in one step")
            longest.owner = None
            self._free = [longest.slot]
        slot: int = self._free.pop()
        self._taken[slot] = ref(member)
        return slot

    def apply(self, rows: torch.Tensor, members: Sequence[_Member]) -> Any:
        """Write what the requests have generated, and compute their rows."""
        import torch

        slots = [member.slot for member in members]
        lengths = [len(member.prompt_ids) + len(member.output_ids) for member in members]
        last = [(member.output_ids or member.prompt_ids or _NOTHING)[-1] for member in members]
        sent = torch.frombuffer(array("i", slots + lengths + last), dtype=torch.int32)
        sent = sent.view(3, len(members))
        host = sent.numpy()
        if rows.is_cuda:
            sent = sent.pin_memory().to(rows.device, non_blocking=True)
        where, length, token = sent.unbind()
        for member in members:
            if member.behind:
                self._write(member)
        position = length - 1
        self._all.gpu[where, position] = token
        self._total.gpu[where] = length
        context = name(_MODULE, "LogitsContext")(
            expanded_idx_mapping=where,
            idx_mapping=where,
            idx_mapping_np=host[0],
            expanded_local_pos=torch.zeros_like(where),
            input_ids=token,
            pos=position,
            seq_lens_upper_bound_np=host[1],
        )
        self.processor.apply_staged_writes()
        return self.processor.apply(rows, context)


class VllmV2Processor(VllmProcessor):
    """Runs a class of the V2 interface."""

    _engine: ClassVar[EngineSettings]
    _object: ClassVar[_Object]

    @classmethod
    def begin(cls, engine: EngineSettings) -> None:
        cls._engine = engine
        cls._object = _Object(cls, engine)

    def start(self, request: Request) -> _Member:
        """Return the request as one that has no slot yet."""
        size = self._engine.vocab_size
        return _Member([i for i in request.prompt_ids if 0 <= i < size], [])

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Take in tokens; they are written with the next step."""
        request.state.output_ids.extend(token_ids)
        request.state.behind |= len(token_ids) > 1

    def rewind(self, request: Request) -> None:
        """Be added anew: the object may have counted the dropped token."""
        old = request.state
        request.state = _Member(old.prompt_ids, [*old.output_ids])

    def compute(
        self,
        logits: torch.Tensor,
        requests: Sequence[Any],
        custom_params: Sequence[Any],  # noqa: ARG002 - for classes of SGLang's contract
    ) -> torch.Tensor:
        """Add who has no slot, and let the object compute the rows that it wants, in float32."""
        members: list[_Member] = [request.state for request in requests]
        used, now = self._object, next(_steps)
        try:
            for request, member in zip(requests, members, strict=True):
                member.seen = now
                if member.owner is not used:
                    used.admit(member, make_params(request.params.values, request.sampling))
            return self._apply(used, logits.float(), members)
        except BaseException:
            # Whatever it knew, nobody can tell now: the others are added to a new one.
            type(self).begin(self._engine)
            raise

    @staticmethod
    def _apply(used: _Object, rows: torch.Tensor, members: list[_Member]) -> torch.Tensor:
        wanted = [row for row, member in enumerate(members) if member.wanted]
        if len(wanted) == len(members):
            result = used.apply(rows, members)
            check_computed(result, rows, tuple(rows.shape))
            return result  # type: ignore[no-any-return]
        if wanted:
            result = used.apply(rows[wanted], [members[row] for row in wanted])
            check_computed(result, rows, (len(wanted), rows.shape[1]))
            rows[wanted] = result.float()
        return rows
