"""One processor of a chain at work on one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

from sglang_lp.edits import NEVER
from sglang_lp.faults import blame
from sglang_lp.processor import LogitProcessor, Recording, Whole
from sglang_lp.request import Request

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.params import Parameters
    from sglang_lp.request import Answer


class _Rest(Sequence[int]):
    """All but the first of some tokens, without a copy."""

    __slots__ = ("_skipped", "_whole")

    def __init__(self, whole: Sequence[int], skipped: int) -> None:
        self._whole = whole
        self._skipped = skipped

    def __len__(self) -> int:
        return max(0, len(self._whole) - self._skipped)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        places = range(self._skipped, len(self._whole))[at]
        if isinstance(places, int):
            return self._whole[places]
        return self._whole[places.start : places.stop : places.step] if places else []


class LinkRequest(Request):
    """The request as one link sees it: the link's parameters and state, the chain's logits.

    Attributes:
        skipped: Number of resumed tokens that are part of the prompt to this link, all or none.
    """

    __slots__ = ("_whole", "sampling", "skipped")

    def __init__(self, whole: Request, params: Parameters, skipped: int = 0) -> None:
        super().__init__(params, may_lag=whole.may_lag, tokenizer=whole.tokenizer)
        self._whole = whole
        self.skipped = skipped
        #: SGLang's ``SamplingParams``, as far as they are known.
        self.sampling: Any = getattr(whole, "sampling", None)
        self.observe()

    @property
    def logits(self) -> torch.Tensor:
        """The copy of the row that all links share, as the links before left it."""
        return self._whole.logits

    def top(self, count: int) -> list[int]:
        """Return the largest logits of the row; the whole request finds them without a copy."""
        return self._whole.top(count)

    def is_among_top(self, token_ids: Iterable[int], count: int) -> Answer:
        """Ask the whole request, as for :meth:`top`."""
        return self._whole.is_among_top(token_ids, count)

    def observe(self) -> None:
        """Copy the history of this step from the whole request."""
        whole: Any = self._whole
        self.prompt_ids, self.output_ids = whole.prompt_ids, whole.output_ids
        self.position, self.exact = whole.position, whole.exact
        if self.skipped:
            self.prompt_ids = whole.full_prompt_ids
            self.output_ids = _Rest(whole.output_ids, self.skipped)
            self.position -= self.skipped


class Link:
    """One processor of a chain at work on one request.

    Attributes:
        processor: The processor.
        name: Its name, read once: naming a fault must not fail.
        request: The request as the processor sees it.
        is_named: Whether messages to the client name the processor and say why it failed. If not,
            only the log does.
        looked: Position of the last call of ``edit``, as the link's request counts. At this
            position the link runs again if SGLang repeats the step after a retraction.
        wake: Position of the next call of ``edit``, as the link's request counts.
        held: The edits of every position between these two, if they hold.
    """

    __slots__ = ("_given", "held", "is_named", "looked", "name", "processor", "request", "wake")

    def __init__(
        self, processor: LogitProcessor, name: str, request: LinkRequest, *, is_named: bool
    ) -> None:
        self.processor = processor
        self.name = name
        self.request = request
        self.is_named = is_named
        #: The parameters as a class reads them that follows SGLang's contract.
        self._given: dict[str, Any] = {}
        if processor.reads_request:
            try:
                self._given = processor.plain(request.params)
            except BaseException as error:  # noqa: BLE001 - the class's own code, as below
                self._blame(error)
        self.looked = self.wake = 0
        self.held: Recording | None = None

    @property
    def wakes(self) -> int:
        """Position of the whole request at which ``edit`` is called next."""
        return min(NEVER, self.wake + self.request.skipped)

    def start(self) -> None:
        """Start the processor."""
        try:
            self.request.state = self.processor.start(self.request)
        except BaseException as error:  # noqa: BLE001
            self._blame(error)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Pass generated tokens on."""
        self.request.observe()
        if self.request.skipped:
            token_ids = token_ids[max(0, len(token_ids) - len(self.request.output_ids)) :]
            if not token_ids:
                return
        try:
            self.processor.advance(self.request, token_ids)
        except BaseException as error:  # noqa: BLE001
            self._blame(error)

    def edit(self, edits: Edits) -> None:
        """Collect the edits of this step."""
        self.request.observe()
        try:
            self.processor.edit(self.request, edits)
        except BaseException as error:  # noqa: BLE001
            self._blame(error)

    def rewind(self) -> None:
        """Prepare for a step that is repeated."""
        try:
            self.processor.rewind(self.request)
        except BaseException as error:  # noqa: BLE001
            self._blame(error)

    def _blame(self, error: BaseException) -> NoReturn:
        """Raise an error that names this link, and none of the others."""
        raise blame(self.name, error, is_named=self.is_named) from None

    def fork(self, request: Request) -> Link:
        """Return a link for a draft of a request, to be advanced and thrown away."""
        own = self.request
        whole = LinkRequest(request, own.params, own.skipped)
        link = Link(self.processor, self.name, whole, is_named=self.is_named)
        link.request.state = own.state
        try:
            link.request.state = self.processor.fork(link.request)
        except BaseException as error:  # noqa: BLE001
            self._blame(error)
        link.looked, link.wake, link.held = self.looked, self.wake, self.held
        return link

    def foresee(self) -> Iterator[int]:
        """Yield the tokens that the processor will force."""
        self.request.observe()
        try:
            yield from self.processor.foresee(self.request)
        except GeneratorExit:  # enough tokens were named
            raise
        except BaseException as error:  # noqa: BLE001
            self._blame(error)

    def whole(self, source: Any) -> Whole:
        """Return the processor's work on the whole row.

        Args:
            source: SGLang's request, or ``None``.
        """
        self.request.observe()
        given = {**self._given, "__req__": source}
        return Whole(self.processor, self.request, given, is_named=self.is_named)
