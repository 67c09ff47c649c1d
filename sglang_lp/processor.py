"""The contract of a processor: one request at a time, as an automaton over its tokens.

A processor says what should happen to the next token of *one* request; the engine turns that into
one set of tensor operations for the batch. It honours the contract of SGLang's
``CustomLogitProcessor`` (``__call__``, ``to_str``, ``from_str``), so that the same class also
works on a server that does not run the plugin.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from sglang_lp import wire
from sglang_lp._engine.apply.runs import Whole
from sglang_lp._engine.apply.whole_rows import check_computed
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.row import Row, attach_row, rows_of
from sglang_lp.copies import Latest, packed
from sglang_lp.edits.ids import LONG, lasting
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import PayloadRefused, RefusalReason, RequestError, Unsupported
from sglang_lp.params import Parameters, check_vocabulary, parse
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
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


_NO_HISTORY = (
    'custom_params has no "__req__", so the history of the request cannot be seen; SGLang adds '
    "it, and in a test sglang_lp.testing.FakeRequest does"
)


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
    _batch: Batch | None = None

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
        if self._batch is None:
            self._batch = Batch()
        vocab_size = logits.shape[1]
        rows = [_served(params, self, vocab_size) for params in custom_param_list]
        repeated = any(row is not None and row is after for row, after in pairwise(rows))
        self._batch.step(logits, rows, custom_param_list, repeated=repeated)
        return logits

    @classmethod
    def to_str(cls) -> str:
        """Serialize this class as SGLang does: ``{"callable": "<hex of dill.dumps(cls)>"}``.

        A class of an importable module travels as its name. One from ``__main__`` or a notebook
        travels as code, which a guarded server takes only if its operator pinned it.
        """
        if _importable(cls):
            return wire.payload_for(cls.__module__, cls.__qualname__)
        import dill

        return wire.encode(dill.dumps(cls))

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
        for candidate in subclasses_of(cls):
            if _importable(candidate) and candidate.to_str() == json_str:
                instance: Self = candidate()
                return instance
        raise PayloadRefused(
            f"expected the payload of {cls.__name__} or of a subclass of it that is imported; "
            "resolve other payloads with sglang_lp.trust.Verifier",
            reason=RefusalReason.NOT_ALLOWED,
        )

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
        key = _key(cls, custom_params, vocab_size)
        if key is None:
            return cls._parse(custom_params, vocab_size)
        params = _parsed.get(key)
        if params is None:
            params = cls._parse(custom_params, vocab_size)
            _parsed.keep(key, params)
        return params

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
    fitted = _fitted_before(params, served)
    if fitted is None:
        fitted = processor.fit_params(params, served)
        if _parsed.has(params):
            _fitted.keep(id(params), (params, served, fitted))
    return fitted


def _fitted_before(params: Parameters, served: ServedModel) -> Parameters | None:
    """Return what parameters became for another copy of the request, if they are its very own."""
    known, model, fitted = _fitted.get(id(params)) or (None, served, None)
    same = known is params and model.tokenizer is served.tokenizer and model[1:] == served[1:]
    return fitted if same else None


_LISTS = list, tuple

#: Parameters that take long to check, for the other copies of the same HTTP request: a list takes
#: ten times as long to check as to compare, and copies share what is made of it. Two chains' worth.
_parsed: Latest[Parameters] = Latest(18)
#: What they became, by the identity of those.
_fitted: Latest[tuple[Parameters, ServedModel, Parameters]] = Latest(18)


def _key(cls: type[LogitProcessor], custom_params: Any, vocab_size: int | None) -> object:
    """Return what decides how parameters parse; ``None`` if that takes no longer than to look."""
    if not isinstance(custom_params, dict) or not cls._takes_long(custom_params):
        return None
    own = packed(custom_params)
    return None if own is None else (cls, vocab_size, own)


def _served(custom_params: Any, processor: LogitProcessor, vocab_size: int) -> Row | None:
    """Return the row of a request, made at its first step; ``None`` if it has no parameters."""
    if not isinstance(custom_params, Mapping):
        return None
    (row,) = rows_of((custom_params,))
    if row is None:
        source = custom_params.get("__req__")
        served = ServedModel.of(
            getattr(source, "tokenizer", None), vocab_size, getattr(source, "eos_token_ids", None)
        )
        try:
            serving, params = prepare(processor, custom_params, served)
            if source is None and serving.needs is not History.NONE:
                raise Unsupported(f"{serving.name}: {_NO_HISTORY}")
        except RequestError as error:
            row = attach_row(custom_params, processor, None)
            row.end(error)
        else:
            row = attach_row(custom_params, serving, params)
    return row


def _importable(cls: type) -> bool:
    module, name = cls.__module__, cls.__qualname__
    return (
        module != "__main__"
        and "." not in name
        and getattr(sys.modules.get(module), name, None) is cls
    )


def subclasses_of(cls: type[LogitProcessor]) -> Iterator[Any]:
    """Yield a class of processors and all that are derived from it and imported."""
    yield cls
    for subclass in cls.__subclasses__():
        yield from subclasses_of(subclass)
