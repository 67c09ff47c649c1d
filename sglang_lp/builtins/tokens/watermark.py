"""A watermark in the choice of tokens, with the operator's key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.processor import LogitProcessor
from sglang_lp.watermark.marks import Mark, Sampling

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel


class _Marking:
    """The sampling of a request, and the contexts of its latest tokens.

    Attributes:
        sampling: The request's sampling parameters.
        last: For each context of the latest tokens the position of the last token after it.
    """

    __slots__ = ("last", "sampling")

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.last: dict[tuple[int, ...], int] = {}

    def __copy__(self) -> _Marking:
        made = _Marking(self.sampling)
        made.last = self.last.copy()
        return made

    def add(self, context: tuple[int, ...], position: int, window: int) -> None:
        """Keep a context, and let go of old ones now and then."""
        last = self.last
        last[context] = position
        if len(last) > 2 * window:
            self.last = {one: at for one, at in last.items() if position - at < window}


class WatermarkLogitProcessor(LogitProcessor):
    """Watermark an answer, so that a test with the key tells that the model wrote it.

    The key and the scheme are the operator's: a file that the policy names. No request chooses
    or sees them. ``sglang-lp watermark detect`` tests a text.

    - ``kgw``, green lists: a bias on a part of the vocabulary that the token before chooses. It
      changes probabilities, and also greedy answers.
    - ``synthid``, SynthID-Text: a tournament between tokens that the request may sample. Over all
      keys the probabilities are the model's. Greedy answers stay as they are.

    The first tokens, without a whole context before them, are not marked. With ``synthid`` neither
    is a token whose context marked one of the last ``context_history_size`` tokens.

    It comes after everything else that edits the logits, in a chain as well, and a forced token
    stays. It allows for the request's temperature, ``top_k``, ``top_p`` and ``min_p``.
    """

    __module__ = "sglang_lp.builtins"
    samples = True
    example: ClassVar[Mapping[str, Any]] = {"where": "answer"}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request."""

    class Fitted(Params, frozen=True):
        """Parameters with the key of the server.

        Attributes:
            scheme: The scheme with its key.
        """

        scheme: Any = None

        def __repr__(self) -> str:
            return f"{type(self).__name__}(where={self.where!r})"

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Take the key of the server.

        Raises:
            InvalidParameter: The server has none.
        """
        if served.watermark is None:
            raise InvalidParameter(
                cls.__name__,
                None,
                "expected a server with a watermark key, and this server has none; its operator "
                "names a key file in the policy, as watermark",
            )
        return cls.Fitted(**msgspec.structs.asdict(params), scheme=served.watermark)

    def start(self, request: Request) -> _Marking:
        """Read the sampling parameters.

        Raises:
            RequestError: The temperature is so high that the bias before it would be out of range.
        """
        scheme, sampling = request.params.scheme, Sampling.of(getattr(request, "sampling", None))
        if scheme.candidates and scheme.bias * sampling.temperature > MAX_BIAS:
            raise RequestError(
                f"temperature: expected at most {MAX_BIAS / scheme.bias:g} with the watermark of "
                f"this server, got {sampling.temperature:g}"
            )
        return _Marking(sampling)

    def fork(self, request: Request) -> _Marking:
        """Copy the contexts."""
        return copy(request.state)  # type: ignore[no-any-return]

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Keep the contexts of new tokens, if they must not mark again."""
        scheme = request.params.scheme
        size, window = scheme.context_size, scheme.window
        if not window:
            return
        output_ids = request.output_ids
        stop = len(output_ids)
        for position in range(max(size, stop - len(token_ids)), stop):
            context = tuple(output_ids[position - size : position])
            request.state.add(context, position, window)

    def edit(self, request: Request, edits: Edits) -> None:
        """Mark the next token, unless its context is incomplete or marked another token."""
        scheme, marking = request.params.scheme, request.state
        sampling: Sampling = marking.sampling
        position, size = request.position, scheme.context_size
        if sampling.top_k == 1 and not scheme.biases:
            edits.rest()
        elif position < size:
            edits.wake_at(size)
        else:
            context = tuple(request.output_ids[-size:])
            before = marking.last.get(context)
            if before is not None and position - before <= scheme.window:
                return
            if scheme.candidates:
                likely = request.top(min(scheme.candidates, edits.vocab_size))
                green = scheme.green(context, likely, edits.vocab_size)
                edits.bias(green, scheme.bias * sampling.temperature)
            else:
                edits.mark(Mark(scheme, context, sampling))
