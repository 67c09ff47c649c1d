"""vLLM's V2 interface: one object for the engine, whose requests keep a slot as long as they run.

A step names the slot of each of its rows, so any requests may be in it. The tokens of a request are
in tensors on the device, by slot.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from sglang_lp.adapters.vllm_config import make_params
from sglang_lp.adapters.vllm_names import name, vllm_names
from sglang_lp.adapters.vllm_processor import VllmProcessor
from sglang_lp.errors import ProcessorFault
from sglang_lp.processor import check_computed

if TYPE_CHECKING:
    import torch

    from sglang_lp.adapters.engine_settings import EngineSettings
    from sglang_lp.request import Request

_NOTHING = (0,)


class _SlotMember:
    """A request of an object.

    Attributes:
        prompt_ids: The prompt, without SGLang's pad values.
        output_ids: Generated tokens.
        owner: The object that it was added to.
        slot: Its slot there.
        wanted: Whether the object wants its rows.
        behind: Whether more than its newest token is missing on the device.
    """

    __slots__ = (
        "__weakref__",
        "behind",
        "output_ids",
        "owner",
        "prompt_ids",
        "slot",
        "wanted",
    )

    def __init__(self, prompt_ids: list[int], output_ids: list[int]) -> None:
        self.prompt_ids = prompt_ids
        self.output_ids = output_ids
        self.owner: _SlotObject | None = None
        self.slot = 0
        self.wanted = True
        self.behind = False


class _Column:
    """A tensor of the engine's: ``gpu`` is on the device of the logits."""

    def __init__(self, gpu: torch.Tensor) -> None:
        self.gpu = gpu


class _SlotObject:
    """One object of the foreign class, its slots and the tensors behind them."""

    def __init__(self, cls: Any, engine: EngineSettings) -> None:
        import torch

        def zeros(*shape: int) -> _Column:
            return _Column(torch.zeros(shape, dtype=torch.int32, device=engine.device))

        slots = engine.max_requests
        self._all = zeros(slots, engine.max_length)
        self._prompt, self._prefill, self._total = zeros(slots), zeros(slots), zeros(slots)
        self._free = [*range(slots)][::-1]
        self._taken: dict[int, ref[_SlotMember]] = {}
        states = name(cls.module, "LogitsProcRequestState")(
            device=torch.device(engine.device),
            max_num_reqs=slots,
            vocab_size=engine.vocab_size,
            all_token_ids=self._all,
            prompt_len=self._prompt,
            prefill_len=self._prefill,
            total_len=self._total,
        )
        self._context = name(cls.module, "LogitsContext")
        self.processor = cls.make_engine_object(engine, states)

    def admit(self, member: _SlotMember, params: Any, step: Sequence[_SlotMember]) -> None:
        """Give a request of this step a slot and add it there."""
        member.slot = slot = self._take(member, step)
        member.owner = self
        self._prompt.gpu[slot] = len(member.prompt_ids)
        self._prefill.gpu[slot] = self._write(member)
        member.wanted = bool(self.processor.add_request(slot, params))

    def _write(self, member: _SlotMember) -> int:
        """Write all tokens of a request; return how many."""
        import torch

        tokens = torch.tensor(member.prompt_ids + member.output_ids, dtype=torch.int32)
        into = self._all.gpu
        into[member.slot, : len(tokens)] = tokens.to(into.device, non_blocking=True)
        member.behind = False
        return len(tokens)

    def _take(self, member: _SlotMember, step: Sequence[_SlotMember]) -> int:
        """Return a free slot, or else the oldest slot of a request that is not in this step."""
        if not self._free:
            self._free = [slot for slot, one in self._taken.items() if one() is None]
        if not self._free:
            held = [one for reference in self._taken.values() if (one := reference())]
            waiting = [one for one in held if one not in step]
            if not waiting:
                raise ProcessorFault(f"more than {len(held)} requests in one step")
            waiting[0].owner = None
            self._free = [waiting[0].slot]
        slot: int = self._free.pop()
        self._taken.pop(slot, None)  # so that the dict is in the order in which they are taken
        self._taken[slot] = ref(member)
        return slot

    def apply(self, rows: torch.Tensor, members: Sequence[_SlotMember]) -> Any:
        """Write what the requests have generated, and compute their rows."""
        import torch

        slots = [member.slot for member in members]
        lengths = [len(member.prompt_ids) + len(member.output_ids) for member in members]
        ends = [length - 1 for length in lengths]
        last = [(member.output_ids or member.prompt_ids or _NOTHING)[-1] for member in members]
        # One copy to the device: `make bench PART=adapters` counts each operation here.
        columns = array("i", slots + ends + lengths + last)
        columns.frombytes(bytes(4 * len(members)))
        sent = torch.frombuffer(columns, dtype=torch.int32).view(5, len(members))
        host = sent.numpy()
        if rows.is_cuda:
            sent = sent.pin_memory().to(rows.device, non_blocking=True)
        where, position, length, token, zeros = sent.unbind()
        for member in members:
            if member.behind:
                self._write(member)
        self._all.gpu.index_put_((where, position), token)
        self._total.gpu.index_put_((where,), length)
        context = self._context(
            expanded_idx_mapping=where,
            idx_mapping=where,
            idx_mapping_np=host[0],
            expanded_local_pos=zeros,
            input_ids=token,
            pos=position,
            seq_lens_upper_bound_np=host[2],
        )
        self.processor.apply_staged_writes()
        return self.processor.apply(rows, context)


class VllmV2Processor(VllmProcessor):
    """Runs a class of the V2 interface."""

    interface = "vllm-v2"
    calling = "vLLM's LogitsProcessor with add_request() and apply()"
    module = "vllm.v1.worker.gpu.sample.logits_processor"

    _engine: ClassVar[EngineSettings]
    _object: ClassVar[_SlotObject]

    @classmethod
    def begin(cls, engine: EngineSettings) -> None:
        cls._engine = engine
        cls._object = _SlotObject(cls, engine)

    def start(self, request: Request) -> _SlotMember:
        """Return the request as one that has no slot yet."""
        size = self._engine.vocab_size
        return _SlotMember([i for i in request.prompt_ids if 0 <= i < size], [])

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Take in tokens; they are written with the next step."""
        member = request.state
        member.output_ids.extend(token_ids)
        if len(token_ids) > 1:
            member.behind = True

    def rewind(self, request: Request) -> None:
        """Be added anew: the object may have counted the dropped token."""
        old = request.state
        request.state = _SlotMember(old.prompt_ids, [*old.output_ids])

    @vllm_names()
    def compute(
        self,
        logits: torch.Tensor,
        requests: Sequence[Any],
        custom_params: Sequence[Any],  # noqa: ARG002 - for classes of SGLang's contract
    ) -> Any:
        """Add requests without a slot, and compute the rows that the object wants, in float32."""
        members: list[_SlotMember] = [request.state for request in requests]
        used = self._object
        try:
            for request, member in zip(requests, members, strict=True):
                if member.owner is not used:
                    params = make_params(request.params.values, request.sampling, self._engine)
                    used.admit(member, params, members)
            return self._apply(used, logits.float(), members)
        except BaseException:
            # The object's state is unknown now: the other requests are added to a new object.
            type(self).begin(self._engine)
            raise

    @staticmethod
    def _apply(used: _SlotObject, rows: torch.Tensor, members: list[_SlotMember]) -> Any:
        if not [member for member in members if not member.wanted]:
            return used.apply(rows, members)  # its caller checks it
        wanted = [row for row, member in enumerate(members) if member.wanted]
        if wanted:
            result = used.apply(rows[wanted], [members[row] for row in wanted])
            check_computed(result, rows, (len(wanted), rows.shape[1]))
            rows[wanted] = result.float()
        return rows
