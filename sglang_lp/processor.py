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

import msgspec

from sglang_lp.computed import check_computed
from sglang_lp.edits.ids import LONG, lasting
from sglang_lp.edits.recording import Recording
from sglang_lp.params import Parameters, check_declared, check_vocabulary, parse, unshared
from sglang_lp.params.parsed import parse_once
from sglang_lp.request import History
from sglang_lp.wire.serialization import find_class, serialize, subclasses_of

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.vocabulary import Vocabulary

__all__ = [
    "LogitProcessor",
    "Recording",
    "check_computed",
    "lasting",
    "subclasses_of",
]

_LISTS = list, tuple


class LogitProcessor:
    """Base of every processor.

    Override :meth:`edit`; override :meth:`start` and :meth:`advance` if the processor keeps state.
    One instance serves many requests: keep nothing on the instance, return state from
    :meth:`start`. A processor that computes on whole rows overrides :meth:`__call__` instead.

    Attributes:
        Params: Type of the parameters, checked in the client, at admission and in the scheduler.
        needs: How much of the history :meth:`edit` needs.
        tolerates_lag: Whether ``edit`` copes with ``request.exact`` being false. If so, a stock
            server calls ``edit`` even when the newest token cannot be seen.
        can_fork: Whether :meth:`fork` works. If not, servers with speculative decoding refuse
            the processor.
        reads_prompt: Whether :meth:`start` reads the whole prompt. With the plugin the request
            then waits in the queue for its turn, because the tokens that are read between two
            steps are bounded. A chain takes one such processor of each kind.
        makes_object: Whether :meth:`start` runs a constructor of another engine's class. Its
            request waits in the same way.
        early: Whether the edits of the first token depend only on parameters and prompt, and
            ``edit`` changes nothing but ``request.state`` there. The plugin then calls ``edit``
            before the first step. A class that overrides ``edit`` has to set it again.
        exclusion_only: Whether the processor only bans, allows and forces tokens or keeps those
            near the top, so that the remaining tokens keep their relative probabilities. SGLang's
            ``return_sampling_mask`` needs this of every processor. A class that overrides ``edit``
            has to set it again; a class where it depends on the parameters sets it in
            :meth:`serving`.
        finishes: Whether :meth:`edit` may end the answer (``edits.finish``). A beam search takes no
            such processor. A class where it depends on the parameters sets it in :meth:`serving`.
        samples: Whether the edits are meant for an answer that is sampled token by token. A beam
            search takes no such processor.
        renormalizes: Whether the score of a beam is made of the probabilities among the tokens that
            the edits leave, instead of the model's own. A class where it depends on the parameters
            sets it in :meth:`serving`.
        example: ``custom_params`` to show in the documentation.
    """

    Params: ClassVar[type[Parameters]] = Parameters
    needs: History = History.TOKENS
    tolerates_lag: bool = False
    can_fork: bool = True
    reads_prompt: bool = False
    makes_object: bool = False
    early: bool = False
    exclusion_only: bool = False
    finishes: bool = False
    samples: bool = False
    renormalizes: bool = False
    example: ClassVar[Mapping[str, Any]] = {}

    #: Whether the class overrides ``__call__``, and so may read SGLang's request.
    reads_request: bool = False
    #: Whether the processor computes on whole rows (overrides ``__call__`` or ``compute``), or
    #: runs other processors that do.
    dense: bool = False
    #: Whether :meth:`edit` is called.
    edits: bool = True
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
        cls.edits = not cls.dense

    @property
    def name(self) -> str:
        """Class name, for messages."""
        return type(self).__name__

    @property
    def kind(self) -> type:
        """The class whose rows may share one call of ``compute``."""
        return type(self)

    # For a processor to override

    def serving(self, params: Any) -> LogitProcessor:  # noqa: ARG002 - for a class that overrides it
        """Return the processor for a request with these parameters, by default ``self``.

        Override it where ``needs``, ``tolerates_lag``, ``exclusion_only``, ``finishes`` or
        ``renormalizes`` depend on parameters.

        Args:
            params: Parsed parameters.
        """
        return self

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

    def rewind(self, request: Request) -> None:
        """Prepare to edit the same position again: SGLang dropped the token that it sampled.

        Called after a retraction. ``request.state`` has not seen the dropped token.

        Args:
            request: The request.
        """

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

    # SGLang's contract

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

    # Called by admission and the scheduler

    @classmethod
    def parse_params(cls, custom_params: Any, vocab_size: int | None = None) -> Parameters:
        """Check and type ``custom_params``.

        Args:
            custom_params: The parameters of a request, or ``None``.
            vocab_size: Number of logits in a row of the served model, if known.

        Returns:
            Typed, immutable parameters.

        Raises:
            InvalidParameter: A parameter does not fit ``Params``.
        """
        if isinstance(custom_params, dict) and cls._takes_long(custom_params):
            return parse_once(cls, custom_params, vocab_size, cls._parse)
        return cls._parse(custom_params, vocab_size)

    @classmethod
    def read_of_prompt(cls, params: Any, length: int) -> int:  # noqa: ARG003 - some read a window
        """Return how many tokens of a prompt :meth:`start` reads, by default all of them.

        For a class with ``reads_prompt``: the tokens that are read between two steps are bounded.
        A search that takes a fraction of the time of a token read in Python counts as less.

        Args:
            params: Parsed and fitted parameters.
            length: Number of tokens of the prompt.
        """
        return length

    @classmethod
    def links(cls, params: Any) -> Sequence[tuple[type[LogitProcessor], Any, None, str]]:
        """Return the processors that a request with these parameters runs, by default this class.

        Args:
            params: Parsed parameters.

        Returns:
            The entries of a :class:`sglang_lp.links.Link` for each.
        """
        return [(cls, params, None, "")]

    @classmethod
    def _parse(cls, custom_params: Any, vocab_size: int | None) -> Parameters:
        """Check and type parameters that are not known from another copy of the request."""
        params = parse(cls.Params, cls.__name__, custom_params)
        if vocab_size is not None:
            check_vocabulary(params, cls.__name__, vocab_size)
        return params

    @classmethod
    def _takes_long(cls, custom_params: Mapping[str, Any]) -> bool:
        """Return whether these parameters take longer to check, or to fit, than to compare."""
        # No any(), which is slower: attach() has 5 µs (docs/performance.md).
        for value in custom_params.values():
            if isinstance(value, _LISTS) and (
                len(value) >= LONG or (len(value) > 0 and isinstance(value[0], str))
            ):
                return True
        return False

    def plain(self, params: Any) -> dict[str, Any]:
        """Return parsed parameters as plain values, for a class that overrides ``__call__``."""
        return msgspec.to_builtins(params)  # type: ignore[no-any-return]

    @classmethod
    def warm(cls, vocabulary: Vocabulary) -> None:
        """Fill caches that every request with this processor needs.

        Called on a server that allows the class, before the server is ready, and again if the
        server's tokenizer changes.

        Args:
            vocabulary: The tokens of the served model as bytes.
        """

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

    @classmethod
    def limit_params(
        cls,
        params: Any,
        limit: int,  # noqa: ARG003 - for a class that overrides it
    ) -> Any:
        """Return the parameters for an answer that has a limit, by default as they are.

        Override it where the edits depend on how many tokens are left.

        Args:
            params: Parsed and fitted; equal requests share them.
            limit: Number of tokens after which the answer ends, resumed ones included.
        """
        return params

    @classmethod
    def own_params(cls, params: Any) -> Any:
        """Return the parameters of one request, which its processor may change.

        Args:
            params: Parsed and fitted; equal requests share them.
        """
        return unshared(params)
