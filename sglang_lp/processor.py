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
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import msgspec

from sglang_lp.edits.ids import LONG, lasting
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import ProcessorFault
from sglang_lp.params import Parameters, check_vocabulary, parse
from sglang_lp.parsed import fit_once, parse_once
from sglang_lp.request import History
from sglang_lp.serialization import find_class, serialize, subclasses_of

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.vocabulary import Vocabulary

__all__ = [
    "LogitProcessor",
    "Recording",
    "Whole",
    "check_computed",
    "fit",
    "lasting",
    "prepare",
    "subclasses_of",
]

_LISTS = list, tuple


class LogitProcessor:
    """Base of every processor.

    Override :meth:`edit`, and :meth:`start` and :meth:`advance` if it keeps state. One instance
    serves many requests: keep nothing on it, return state from :meth:`start`. A processor that
    computes on whole rows at once overrides :meth:`__call__` instead.

    Attributes:
        Params: Type of the parameters; validated in the client, at admission and in the scheduler.
        needs: What it must know of the tokens generated so far.
        tolerates_lag: Whether ``edit`` copes with ``request.exact`` being false, so that it is
            called on a stock server even when the newest token cannot be seen.
        can_fork: Whether :meth:`fork` works. If not, servers with speculative decoding refuse
            the processor.
        reads_prompt: Whether :meth:`start` reads the whole prompt. With the plugin its request
            waits in the queue until it may: what is read between two steps is bounded. A chain
            takes one such processor of a kind.
        early: Whether the edits of the first token depend on parameters and prompt alone, and
            asking for them changes nothing but ``request.state``. The plugin then asks before
            the first step, which does not wait. A class that overrides ``edit`` says so itself.
        exclusion_only: Whether it bans, allows and forces tokens and does nothing else: what is
            left keeps its relative probabilities. SGLang's ``return_sampling_mask`` is served with
            such processors alone. A class that overrides ``edit`` says so itself, and one whose
            parameters decide sets it in :meth:`serving`.
        example: ``custom_params`` to show in its documentation.
    """

    Params: ClassVar[type[Parameters]] = Parameters
    needs: History = History.TOKENS
    tolerates_lag: bool = False
    can_fork: bool = True
    reads_prompt: bool = False
    early: bool = False
    exclusion_only: bool = False
    example: ClassVar[Mapping[str, Any]] = {}

    #: Whether the class overrides ``__call__``, and so may read SGLang's request.
    reads_request: bool = False
    #: Whether it computes on whole rows (overrides ``__call__`` or ``compute``), or runs others
    #: that do; and whether :meth:`edit` is called.
    dense: bool = False
    edits: bool = True
    #: Edits the rows of a step; the engine's, once SGLang has called this instance.
    _edit_rows: Callable[[LogitProcessor, torch.Tensor, Sequence[Any]], None] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
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
        """Return the processor for a request with these parameters: for most classes this one.

        Args:
            params: Parsed, on which ``needs``, ``tolerates_lag`` or ``exclusion_only`` may depend.
        """
        return self

    def start(self, request: Request) -> Any:
        """Return the state of a request before its first generated token.

        Called once per request, with the plugin before its first step and else in it; and again
        if its history is ever rewritten.

        Args:
            request: Has ``params`` and ``prompt_ids``.
        """

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Take in tokens that were generated: each exactly once, in order, one or more a call.

        Args:
            request: ``request.state`` is what ``start`` returned.
            token_ids: The tokens that came since the last call, oldest first.
        """

    def fork(self, request: Request) -> Any:
        """Return a state that can be advanced along a draft and thrown away.

        Speculative decoding drafts tokens that may not come. What ``advance`` does to the fork
        must not reach ``request.state``; what neither changes may be shared. Override it where
        ``copy.deepcopy`` copies too much.

        Args:
            request: ``request.state`` is what to fork.
        """
        return copy.deepcopy(request.state)

    def edit(self, request: Request, edits: Edits) -> None:
        """Say what happens to the next token of this request.

        Args:
            request: Its parameters, history and state.
            edits: Takes the edits, see :class:`sglang_lp.edits.Edits`.
        """
        raise NotImplementedError(f"{self.name} overrides neither edit() nor __call__()")

    def wholes(self, request: Request, custom_params: Any) -> Sequence[Whole]:
        """Return what computes on the whole row of a request, in order; called if ``dense``.

        Args:
            request: The request.
            custom_params: As SGLang has them.
        """
        return (Whole(self, request, custom_params),)

    def foresee(self, request: Request) -> Iterable[int]:  # noqa: ARG002 - for who overrides it
        """Return the tokens that :meth:`edit` will force: the next one, and those that follow it.

        Speculative decoding then drafts them in place of what a draft model says, and a step
        accepts all of them. Only as many are taken as a draft needs. One that is not forced
        after all costs a place in a draft; what an answer says does not change.

        Called after a step in which ``edit`` left one token only.

        Args:
            request: As ``edit`` got it.

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

        For classes that need the requests; :meth:`__call__` gets ``custom_params`` alone. If it
        raises, each row is computed again alone, which tells whose fault it was. With speculative
        decoding every node of a draft has a row and a request of its own, after those above it;
        its state is a fork, so what is written there does not reach the request.

        Args:
            logits: Shape ``(rows, vocab)``, any float dtype: a copy, to be changed or not.
            requests: Of each row.
            custom_params: Of each row, as SGLang has them.

        Returns:
            What goes back into the batch: floats of the same shape on the same device.
        """
        return self(logits, custom_params)

    def rewind(self, request: Request) -> None:
        """Prepare for the same position once more: SGLang dropped the token sampled last.

        It does so when it retracts a request. ``request.state`` has not seen that token.

        Args:
            request: The request.
        """

    def explain(self, request: Request) -> str:  # noqa: ARG002 - for who overrides it
        """Say why :meth:`edit` edited as it just did: a few words for a trace of the answer.

        Never called on a server.

        Args:
            request: As ``edit`` got it.

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
        """Return what a finished answer says of this processor, in ``meta_info["sglang_lp"]``.

        Args:
            params: Parsed.
            prompt_ids: Token ids of the prompt.
            output_ids: Token ids of the answer.
            forced: Spans of positions whose token a processor of the request forced, each as the
                first position and the one after the last.

        Returns:
            JSON values by name; nothing by default. What is no JSON, or raised here, ends the
            request with an error.
        """
        return {}

    # SGLang's contract

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Any] | None = None
    ) -> torch.Tensor:
        """Edit the logits of a batch, as SGLang's sampler asks for it.

        Args:
            logits: Shape ``(rows, vocab)``, any float dtype, edited in place.
            custom_param_list: For each row the request's ``custom_params``. A row with ``None``
                is left alone.

        Returns:
            ``logits`` itself.

        Raises:
            RequestError: Parameters that do not fit, in a row without an SGLang request or with
                one that cannot be ended; one that can is ended with that error instead.
            ProcessorFault: The processor failed, in such a row.
            ValueError: Not one entry per row.
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
        """Return an instance of the class that a payload names: this one or a subclass of it.

        Unlike SGLang's, it executes and imports nothing: the payload is compared with those of
        the classes that exist.

        Args:
            json_str: What ``to_str`` returned.

        Raises:
            PayloadRefused: The payload is not of this class or one of its subclasses.
        """
        return find_class(cls, json_str)()

    # What admission and the scheduler call

    @classmethod
    def parse_params(cls, custom_params: Any, vocab_size: int | None = None) -> Parameters:
        """Check and type ``custom_params``.

        Args:
            custom_params: What a request carries, or ``None``.
            vocab_size: Number of logits in a row of the served model, if known.

        Raises:
            InvalidParameter: What was expected, what came, and what to do.
        """
        if isinstance(custom_params, dict) and cls._takes_long(custom_params):
            return parse_once(cls, custom_params, vocab_size, cls._parse)
        return cls._parse(custom_params, vocab_size)

    @classmethod
    def _parse(cls, custom_params: Any, vocab_size: int | None) -> Parameters:
        """Check and type parameters that are not known from another copy of the request."""
        params = parse(cls.Params, cls.__name__, custom_params)
        if vocab_size is not None:
            check_vocabulary(params, cls.__name__, vocab_size)
        return params

    @classmethod
    def _takes_long(cls, custom_params: Mapping[str, Any]) -> bool:
        """Tell whether these parameters take longer to check, or to fit, than to compare."""
        for value in custom_params.values():  # any() takes twice as long, and attach() has 5 µs
            if isinstance(value, _LISTS) and (
                len(value) >= LONG or (len(value) > 0 and isinstance(value[0], str))
            ):
                return True
        return False

    def plain(self, params: Any) -> dict[str, Any]:
        """Return parsed parameters as a class that overrides ``__call__`` reads them."""
        return msgspec.to_builtins(params)  # type: ignore[no-any-return]

    @classmethod
    def warm(cls, vocabulary: Vocabulary) -> None:
        """Make what takes long, and what every request with this processor needs.

        Called on a server that allows the class, before it says that it is ready, and again if
        another tokenizer is served.

        Args:
            vocabulary: What the tokens of the served model spell.
        """

    @classmethod
    def fit_params(
        cls,
        params: Parameters,
        served: ServedModel,  # noqa: ARG003 - for who overrides it
    ) -> Parameters:
        """Check parsed parameters against the served model, and fill in what only it knows.

        Called on the server, once in a process for a request and its copies: costs microseconds,
        so an override remembers what it asked a tokenizer.

        Args:
            params: What ``parse_params`` returned.
            served: The model; whatever is known of it.

        Raises:
            InvalidParameter: They are for another model, or cannot be filled in.
        """
        return params


def prepare(
    processor: LogitProcessor, custom_params: Any, served: ServedModel
) -> tuple[LogitProcessor, Parameters]:
    """Make a processor ready for a request: the one way from parameters to what serves them.

    Args:
        processor: An instance of the class that the request names.
        custom_params: What the request carries, or ``None``.
        served: The model; whatever is known of it.

    Returns:
        The processor that serves the request, and its parsed parameters.

    Raises:
        RequestError: The parameters do not fit the processor or the served model.
    """
    fitted = fit(processor, processor.parse_params(custom_params, served.vocab_size), served)
    return processor.serving(fitted), fitted


def fit(
    processor: LogitProcessor | type[LogitProcessor], params: Parameters, served: ServedModel
) -> Parameters:
    """Return what ``fit_params`` does, the same for all copies of a request.

    Args:
        processor: An instance or the class.
        params: What ``parse_params`` returned.
        served: The model; whatever is known of it.

    Raises:
        InvalidParameter: As ``fit_params``.
    """
    return fit_once(params, served, processor.fit_params)


class Whole(NamedTuple):
    """A processor that computes on the whole row of a request.

    Attributes:
        processor: The processor.
        request: The request as the processor sees it.
        custom_params: The parameters as the processor reads them.
    """

    processor: LogitProcessor
    request: Request
    custom_params: Any


def check_computed(result: object, logits: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Check the rows that a processor computed.

    Args:
        result: What :meth:`LogitProcessor.compute` returned.
        logits: The logits that it got, for their device.
        shape: The shape that ``result`` must have.

    Raises:
        ProcessorFault: ``result`` is no tensor of floats of this shape on the same device.
    """
    import torch

    if not isinstance(result, torch.Tensor):
        came = type(result).__name__
    elif tuple(result.shape) != shape or not result.is_floating_point():
        came = f"{result.dtype} of shape {tuple(result.shape)}"
    elif result.device != logits.device:
        came = f"one on {result.device}"
    else:
        return
    raise ProcessorFault(
        f"it returned {came}, expected a tensor of floats of shape {shape} on {logits.device}"
    )
