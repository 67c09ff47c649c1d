"""The contract of a processor: one request at a time, as an automaton over its tokens.

A processor says what should happen to the next token of *one* request; the engine turns that into
one set of tensor operations for the batch. It honours the contract of SGLang's
``CustomLogitProcessor`` (``__call__``, ``to_str``, ``from_str``), so that the same class also
works on a server that does not run the plugin.

Importing this module imports neither torch nor the engine: a client needs neither.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sglang_lp.computed import check_computed
from sglang_lp.edits.ids import lasting
from sglang_lp.edits.recording import Recording
from sglang_lp.params import Parameters, check_declared
from sglang_lp.processor_base import ProcessorBase
from sglang_lp.request import History
from sglang_lp.wire.serialization import find_class, serialize, subclasses_of

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

__all__ = [
    "LogitProcessor",
    "Recording",
    "check_computed",
    "lasting",
    "subclasses_of",
]


class LogitProcessor(ProcessorBase):
    """Base of every processor.

    Override :meth:`edit`; override :meth:`start` and :meth:`advance` if the processor keeps state.
    One instance serves many requests: keep nothing on the instance, return state from
    :meth:`start`. A processor that computes on whole rows overrides :meth:`__call__` instead.

    Members that few classes need are in :class:`~sglang_lp.processor_base.ProcessorBase`: flags
    that speculative decoding, beam searches and long prompts ask for, and
    :meth:`~sglang_lp.processor_base.ProcessorBase.serving`, where flags depend on the parameters.

    Attributes:
        Params: Type of the parameters, checked in the client, at admission and in the scheduler.
        example: ``custom_params`` to show in the documentation.
        needs: How much of the history :meth:`edit` needs.
        early: Whether the edits of the first token depend only on parameters and prompt, and
            ``edit`` changes nothing but ``request.state`` there. The plugin then calls ``edit``
            before the first step. A class that overrides ``edit`` has to set it again.
        exclusion_only: Whether the processor only bans, allows and forces tokens or keeps those
            near the top, so that the remaining tokens keep their relative probabilities. SGLang's
            ``return_sampling_mask`` needs this of every processor. A class that overrides ``edit``
            has to set it again.
        finishes: Whether :meth:`edit` may end the answer (``edits.finish``). A beam search takes no
            such processor.
    """

    # Parameters

    Params: ClassVar[type[Parameters]] = Parameters
    example: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def fit_params(
        cls,
        params: Any,
        served: ServedModel,  # noqa: ARG003 - for a class that overrides it
    ) -> Parameters:
        """Check parsed parameters against the served model, and resolve texts to tokens.

        Called on the server once per process for a request and its copies. It must take
        microseconds, so an override caches the answers of a tokenizer.

        :func:`sglang_lp.text.vocabulary.token_texts` says what each token of ``served.tokenizer``
        spells.

        Args:
            params: Parsed parameters.
            served: The served model, as far as it is known.

        Returns:
            Parameters of the same type.

        Raises:
            InvalidParameter: The parameters are for another model, or a text cannot be resolved.
        """
        return params  # type: ignore[no-any-return]

    # Flags

    needs: History = History.TOKENS
    early: bool = False
    exclusion_only: bool = False
    finishes: bool = False

    # One token after another

    def start(self, request: Request) -> Any:
        """Return the state of a request before its first generated token.

        Called once per request: with the plugin before the first step, without it in the first
        step. Called again if the history is rewritten.

        Args:
            request: Has ``params`` and ``prompt_ids``.
        """

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Update the state with generated tokens: each exactly once, in order, one or more a call.

        Args:
            request: ``request.state`` is the state that ``start`` returned.
            token_ids: The tokens since the last call, oldest first.
        """

    def fork(self, request: Request) -> Any:
        """Return a copy of the state, to be advanced along a draft and thrown away.

        Speculative decoding drafts tokens that may be rejected. A change that ``advance`` makes to
        the copy must not reach ``request.state``; parts that never change may be shared. Override
        this method where ``copy.deepcopy`` copies too much.

        Args:
            request: ``request.state`` is the state to copy.
        """
        return copy.deepcopy(request.state)

    def edit(self, request: Request, edits: Edits) -> None:
        """Declare the edits of the next token of this request.

        Args:
            request: Parameters, history and state.
            edits: Takes the edits, see :class:`sglang_lp.edits.Edits`.
        """
        raise NotImplementedError(f"{self.name} overrides neither edit() nor __call__()")

    # In addition to edits

    def foresee(self, request: Request) -> Iterable[int]:  # noqa: ARG002 - for a class that overrides it
        """Return the tokens that :meth:`edit` will force, from the next token on.

        Speculative decoding drafts them in place of the draft model's tokens, and a step accepts
        all of them. Only as many are read as a draft needs. A token that is not forced after all
        wastes a place in a draft and does not change the answer.

        Called after a step in which ``edit`` left exactly one token.

        Args:
            request: The request that ``edit`` got.

        Returns:
            Ids in ``[0, vocab)``; none by default.
        """
        return ()

    def explain(self, request: Request) -> str:  # noqa: ARG002 - for a class that overrides it
        """Return the reason for the last edits, in a few words for a trace of the answer.

        Never called on a server.

        Args:
            request: The request that ``edit`` got.

        Returns:
            Words like ``512 of 512 tokens thought``; empty if the edits speak for themselves.
        """
        return ""

    def report(
        self,
        params: Any,  # noqa: ARG002 - for a class that overrides it
        prompt_ids: Sequence[int],  # noqa: ARG002
        output_ids: Sequence[int],  # noqa: ARG002
        forced: Sequence[Sequence[int]],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return this processor's part of the report, ``meta_info["sglang_lp"]`` of an answer.

        Args:
            params: Parsed parameters.
            prompt_ids: Token ids of the prompt.
            output_ids: Token ids of the answer.
            forced: Spans of positions whose token any processor of the request forced. A span is
                the first position and the position after the last.

        Returns:
            JSON values by name; nothing by default. The request ends with an error if a value is
            no JSON, or if this method raises.
        """
        return {}

    # Whole rows

    def compute(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],  # noqa: ARG002 - for a class that overrides it
        custom_params: Sequence[Any],
    ) -> torch.Tensor:
        """Compute the rows of all requests of this kind at one step.

        Override it in place of :meth:`__call__` where the class needs the requests and not only
        ``custom_params``. If it raises, it is called again for each row, to find the request at
        fault. With speculative decoding every node of a draft has a row and a request of its own,
        parents before children; the state of such a request is a fork.

        Args:
            logits: Shape ``(rows, vocab)``, any float dtype: a copy that may be changed.
            requests: The request of each row.
            custom_params: The parameters of each row, as SGLang has them.

        Returns:
            The new rows: floats of the same shape on the same device.
        """
        return self(logits, custom_params)

    # SGLang's contract

    #: The engine's function for the rows of a step, set at the first :meth:`__call__`.
    _edit_rows: Callable[[LogitProcessor, torch.Tensor, Sequence[Any]], None] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_declared(cls)
        if "edit" in vars(cls):
            cls.early = vars(cls).get("early", False)
            cls.exclusion_only = vars(cls).get("exclusion_only", False)
        cls.reads_request = cls.__call__ is not LogitProcessor.__call__
        cls.dense = cls.reads_request or cls.compute is not LogitProcessor.compute

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Any] | None = None
    ) -> torch.Tensor:
        """Edit the logits of a batch in place; SGLang's sampler calls this.

        Args:
            logits: Shape ``(rows, vocab)``, any float dtype.
            custom_param_list: The request's ``custom_params`` for each row. A row with ``None``
                does not change.

        Returns:
            ``logits`` itself.

        Raises:
            RequestError: The parameters do not fit, and the row has no SGLang request that could
                end with this error instead.
            ProcessorFault: The processor failed, in such a row.
            ValueError: ``custom_param_list`` has not one entry per row.
        """
        if self.reads_request:
            raise NotImplementedError(
                f"{self.name} overrides __call__(), so there is no super().__call__(): override "
                "edit() instead, and change request.logits there"
            )
        if not custom_param_list:
            return logits
        if len(custom_param_list) != len(logits):
            raise ValueError(
                f"{self.name}: expected one custom_params per row, got {len(custom_param_list)} "
                f"for {len(logits)} rows"
            )
        if self._edit_rows is None:
            from sglang_lp._engine.stock import StockBatch  # which needs torch

            self._edit_rows = StockBatch().edit
        self._edit_rows(self, logits, custom_param_list)
        return logits

    @classmethod
    def to_str(cls) -> str:
        """Serialize this class as SGLang does: ``{"callable": "<hex of dill.dumps(cls)>"}``.

        A class of an importable module travels as its name. One from ``__main__`` or a notebook
        travels as code, which a guarded server takes only if its operator pinned it.
        """
        return serialize(cls)

    @classmethod
    def from_str(cls, json_str: str) -> Self:
        """Return an instance of the class that a payload names: this class or a subclass.

        Unlike SGLang's ``from_str``, it executes and imports nothing: the payload is compared with
        the payloads of the classes that exist.

        Args:
            json_str: A payload of ``to_str``.

        Raises:
            PayloadRefused: The payload names another class.
        """
        return find_class(cls, json_str)()
