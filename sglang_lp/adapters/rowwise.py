"""Classes that take one request at a time: an object for each, called once for each token.

Such an object may count its calls, draw random numbers or remember logits, so its state cannot be
told from the history. It is therefore called exactly once for each position, in order. Where SGLang
runs a position again, after a retraction, it gets the row that was computed there before: history
and logits are the same. An object that starts behind the first position (decode apart from
prefill) is first called for the positions before, with logits of zero.

At a drafted token a copy of the object is called, made after the call at the token before. If the
draft is accepted, the copy goes on with the request.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sglang_lp.adapters.adapted import AdaptedProcessor
from sglang_lp.adapters.arguments import Arguments, Constructor, Setting, count_arguments
from sglang_lp.adapters.trial import try_out
from sglang_lp.errors import PolicyError, shown
from sglang_lp.processor import check_computed

if TYPE_CHECKING:
    import torch

    from sglang_lp.adapters.engine_settings import EngineSettings
    from sglang_lp.params import Parameters
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel


class Run(ABC):
    """One object at work on one request.

    Args:
        processor: Makes the object, with the first row.
        request: The request.

    Attributes:
        output_ids: Generated tokens: one list that grows.
        made: The object.
        called: Position of its last call.
        parent: Along a draft, the run of the token before, until this run is called itself.
        children: The runs of drafted tokens that follow directly, by token: the next nodes of the
            draft's tree.
    """

    def __init__(self, processor: RowwiseProcessor, request: Request) -> None:
        self._processor = processor
        self._prompt_ids: Sequence[int] = request.prompt_ids
        self._prompt: list[int] | None = None
        self.output_ids: list[int] = []
        self.made: Any = None
        self._is_made = False
        self.called = -1
        #: The row that the last call computed.
        self._computed: torch.Tensor | None = None
        self.parent: Run | None = None
        self.children: dict[int, Run] = {}

    @abstractmethod
    def call(self, made: Any, position: int, row: torch.Tensor) -> torch.Tensor | None:
        """Call the object.

        Args:
            made: The object.
            position: Number of generated tokens that it is to see.
            row: Float32, shape ``(vocab,)``, may be changed.

        Returns:
            The computed row, of the same shape and checked; ``None`` for ``row`` itself.
        """

    def make(self, request: Request, device: str, vocab_size: int) -> None:
        """Make the object, for logits of this size on a device."""
        setting = Setting(request.tokenizer, device, len(self.prompt(vocab_size)))
        self.made = self._processor.make(request, setting)
        self._is_made = True

    def step(self, request: Request, row: torch.Tensor) -> None:
        """Compute the row of this step in place: float32, shape ``(vocab,)``."""
        position = request.position
        if position == self.called and self._computed is not None:
            row.copy_(self._computed)
            return
        if self.parent is not None:
            self.made, self.called = deepcopy(self.parent.made), self.parent.called
            self.parent = None
        elif self._computed is None:
            if not self._is_made:  # no server has begun
                self.make(request, str(row.device), len(row))
            if self._processor.generation_only:
                self.called = position - 1
        if self.made is not None:
            for missed in range(self.called + 1, position):
                self.call(self.made, missed, row.new_zeros(row.shape))
                self.called = missed
            computed = self.call(self.made, position, row)
            if computed is not None and computed.data_ptr() != row.data_ptr():
                row.copy_(computed)
        self.called = position
        self._computed = row

    def fork(self) -> Self:
        """Return a run for a draft that continues this run, once this run has been called."""
        fork = copy(self)
        fork.branch_from(self)
        return fork

    def branch_from(self, parent: Run) -> None:
        """Make this shallow copy of a run a child of it: copy the attributes that change."""
        self.output_ids = [*parent.output_ids]
        self.parent, self.children = parent, {}

    def after(self, token_ids: Sequence[int]) -> Run:
        """Return the run that continues after generated tokens: this run or a run along a draft."""
        run: Run = self
        for token_id in token_ids:
            child = run.children.get(token_id)
            if child is not None and child.parent is None:  # it was called
                run = child
                continue
            if run.parent is not None:
                run.parent.children[token_id] = run
            run.output_ids.append(token_id)
            run.children = {}
        return run

    def rewind(self) -> None:
        """Copy the computed row out of the tensor of its step.

        Runs along drafts do so as well: their tokens may have been accepted.
        """
        if self._computed is not None:
            self._computed = self._computed.clone()
        for child in self.children.values():
            child.rewind()

    def prompt(self, vocab_size: int) -> list[int]:
        """Return the prompt without SGLang's pad values, which are no tokens of the model."""
        if self._prompt is None:
            self._prompt = [i for i in self._prompt_ids if 0 <= i < vocab_size]
        return self._prompt

    def outputs(self, position: int) -> list[int]:
        """Return the first generated tokens; if these are all, the list that grows."""
        return self.output_ids if position == len(self.output_ids) else self.output_ids[:position]


class RowwiseProcessor(AdaptedProcessor):
    """Runs a class that takes one request at a time."""

    #: Unless a class is known not to be copyable, a copy that fails at a drafted token is a fault.
    can_fork = True
    #: The class of the runs.
    run: ClassVar[type[Run]]
    makes_object = True
    #: Whether this server leaves the class out, because it only prefills.
    _idle: ClassVar[bool] = False
    #: Of the server whose scheduler this process is.
    _server: ClassVar[EngineSettings | None] = None

    @classmethod
    def begin(cls, engine: EngineSettings) -> None:
        cls._server = engine
        cls._idle = cls.generation_only and not engine.decodes

    def make(self, request: Request, setting: Setting) -> Any:
        """Make the object of a request; ``None`` if its row stays as it is.

        Args:
            request: The request.
            setting: The arguments that only the server knows.
        """
        raise NotImplementedError

    def start(self, request: Request) -> Run:
        """Begin the run of a request; on a server, make its object before its first step."""
        run = self.run(self, request)
        if self._server is not None and not self._idle:
            run.make(request, self._server.device, self._server.vocab_size)
        return run

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Add tokens to the list that the object sees."""
        request.state = request.state.after(token_ids)

    def fork(self, request: Request) -> Run:
        """Return a run along a draft."""
        run: Run = request.state
        return run.fork()

    def rewind(self, request: Request) -> None:
        """Be ready to give the last row once more."""
        request.state.rewind()

    def compute(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        custom_params: Sequence[Any],  # noqa: ARG002 - for classes of SGLang's contract
    ) -> torch.Tensor:
        """Call the object of each request on its row, in float32."""
        if self._idle:
            return logits
        rows = logits.float()
        for request, row in zip(requests, rows, strict=True):
            request.state.step(request, row)
        return rows


class ConstructedProcessor(RowwiseProcessor):
    """Runs a class that is made for each request, from the request's arguments.

    Attributes:
        library: The package whose base classes tell the interface, and their names.
        counts: How many arguments a call may have.
    """

    takes_arguments = True
    library: ClassVar[tuple[str, frozenset[str]]]
    counts: ClassVar[tuple[int, ...]] = (2,)
    constructor: ClassVar[Constructor]

    @classmethod
    def detects(cls, found: Any) -> bool:
        package, names = cls.library
        bases = found.__mro__[1:] if isinstance(found, type) else ()
        return any(
            base.__name__ in names and base.__module__.partition(".")[0] == package
            for base in bases
        )

    @classmethod
    def check_class(cls, found: Any, where: str) -> None:
        if isinstance(found, type) and not any("__call__" in vars(base) for base in found.__mro__):
            raise PolicyError(f"{where}: expected {cls.calling}, but it has no __call__()")
        count = count_arguments(found)
        if count is not None and count not in cls.counts:
            raise PolicyError(f"{where}: expected {cls.calling}, but it takes {count} arguments")

    @classmethod
    def prepare(cls) -> None:
        cls.constructor = Constructor(cls.foreign, cls.title, cls.fixed)
        for key in cls.limits:
            if not cls.constructor.takes(key):
                raise PolicyError(f"{cls.title}: limits: it takes no {shown(key)}; correct it")

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Parameters:
        """Fill in the served model's answers, and check whether the class takes the arguments."""
        setting = Setting(served.tokenizer)
        values = cls.constructor.filled(params.values, served)
        cls.constructor.check(values, setting)
        seconds = 0.0
        if cls._server is None:  # a scheduler makes the object itself
            seconds = try_out(cls.title, lambda: cls._try(values, setting))
        return Arguments(values=values, seconds=seconds)

    @classmethod
    def defaults(cls) -> Mapping[str, Any]:
        """Return the defaults of the constructor's arguments that a request can set."""
        return cls.constructor.defaults

    @classmethod
    def _try(cls, values: Mapping[str, Any], setting: Setting) -> None:
        """Make an object; the first shows whether objects of the class can be copied."""
        made = cls.constructor.make(values, setting)
        if "can_fork" not in vars(cls):
            cls.can_fork = _can_copy(made)

    def make(self, request: Request, setting: Setting) -> Any:
        """Make the object of a request."""
        return self.constructor.make(request.params.values, setting)


def _can_copy(made: Any) -> bool:
    """Tell whether a copy of an object shares nothing with it that changes.

    A copy would share what cannot be pickled: a closure, a generator, a lock.
    """
    try:
        pickle.dumps(made)
    except Exception:  # noqa: BLE001 - the class's own code
        return False
    return True


def checked(result: Any, row: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the row that an object returned, checked.

    Raises:
        ProcessorFault: Not floats of this shape on the device of the row.
    """
    check_computed(result, row, shape)
    computed: torch.Tensor = result
    return computed
