"""The base of adapted classes: a processor of this toolkit that runs another engine's class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.adapters.arguments import Arguments, check_numbers, check_token_ids
from sglang_lp.params import is_private
from sglang_lp.params.flat_json import read_flat
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.adapters.engine_settings import EngineSettings
    from sglang_lp.params import Parameters


class AdaptedProcessor(LogitProcessor):
    """Base of the classes that :func:`sglang_lp.adapters.adapt` makes, one for each foreign class.

    An adapter is a subclass. It says which interface it runs, and which classes are written for
    that interface.

    Attributes:
        interface: Name of the interface, as the operator writes it.
        calling: How its classes are called, for messages.
        takes_arguments: Whether the operator can set arguments of the constructor.
        foreign: The foreign class, or a function.
        title: ``module:Class (interface)``, for messages.
        fixed: Arguments that the operator sets.
        limits: The largest number that a request may give, by the name of a parameter.
        generation_only: Whether servers that only prefill for others leave it out.
    """

    Params = Arguments
    can_fork = False  # only the class itself knows its state

    interface: ClassVar[str]
    calling: ClassVar[str]
    takes_arguments: ClassVar[bool] = False

    foreign: ClassVar[Any]
    title: ClassVar[str]
    fixed: ClassVar[Mapping[str, Any]] = {}
    limits: ClassVar[Mapping[str, int]] = {}
    generation_only: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the foreign class and its interface, for messages."""
        return self.title

    @classmethod
    def detects(cls, found: Any) -> bool:
        """Tell whether a class or function is plainly written for this interface."""
        raise NotImplementedError

    @classmethod
    def check_class(cls, found: Any, where: str) -> None:
        """Check that a class or function can be of this interface.

        Args:
            found: The class or function.
            where: Its name in messages.

        Raises:
            PolicyError: It cannot.
        """
        raise NotImplementedError

    @classmethod
    def runner(cls, found: Any) -> type[AdaptedProcessor]:  # noqa: ARG003 - for subclasses
        """Return the adapter that runs a class: for most interfaces this adapter."""
        return cls

    @classmethod
    def prepare(cls) -> None:
        """Check the class as far as that is possible before a server is known.

        Raises:
            PolicyError: It cannot be served.
        """

    @classmethod
    def begin(cls, engine: EngineSettings) -> None:
        """Make the objects that all requests of this process share, once its server is known.

        Args:
            engine: The settings of the server.

        Raises:
            PolicyError: The class cannot be made.
        """

    def plain(self, params: Any) -> dict[str, Any]:
        """Return a copy of the parameters as they came, which the class may change."""
        return msgspec.to_builtins(params.values)  # type: ignore[no-any-return]

    @classmethod
    def parse_params(cls, custom_params: Any, vocab_size: int | None = None) -> Parameters:
        """Check ``custom_params`` as far as that is possible without a schema."""
        given = read_flat(custom_params).items()
        values = cls.unwrapped({key: value for key, value in given if not is_private(key)})
        check_token_ids(cls.title, values, vocab_size)
        check_numbers(cls.title, values, cls.limits)
        return Arguments(values=values)

    @classmethod
    def defaults(cls) -> Mapping[str, Any]:
        """Return the values of parameters that a request leaves out, where the class says them."""
        return {}

    @classmethod
    def unwrapped(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters without what another engine's clients wrap them in."""
        return values
