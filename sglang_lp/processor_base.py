"""The members of a processor that few classes need: some built-ins, and adapted classes.

:mod:`sglang_lp.processor` has the members that authors override.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from sglang_lp.params import Parameters, check_vocabulary, parse

if TYPE_CHECKING:
    from sglang_lp.request import Request
    from sglang_lp.text.vocabulary import Vocabulary

__all__ = ["ProcessorBase"]


class ProcessorBase:
    """Base of :class:`~sglang_lp.processor.LogitProcessor`.

    Parameters pass the stages of :mod:`sglang_lp.links`.

    Attributes:
        tolerates_lag: Whether ``edit`` copes with ``request.exact`` being false. If so, a stock
            server calls ``edit`` even when the newest token cannot be seen.
        can_fork: Whether ``fork`` works. If not, servers with speculative decoding refuse the
            processor.
        reads_prompt: Whether ``start`` reads the whole prompt. With the plugin the request then
            waits in the queue for its turn, because the tokens that are read between two steps are
            bounded. A chain takes one such processor of each kind.
        makes_object: Whether ``start`` runs a constructor of another engine's class. Its request
            waits in the same way.
        samples: Whether the edits are meant for an answer that is sampled token by token. A beam
            search takes no such processor.
        renormalizes: Whether the score of a beam is made of the probabilities among the tokens that
            the edits leave, instead of the model's own.
        reads_request: Whether the class overrides ``__call__``, and so may read SGLang's request.
        dense: Whether it computes on whole rows: it overrides ``__call__`` or ``compute``.
    """

    Params: ClassVar[type[Parameters]]

    tolerates_lag: bool = False
    can_fork: bool = True
    reads_prompt: bool = False
    makes_object: bool = False
    samples: bool = False
    renormalizes: bool = False
    reads_request: bool = False
    dense: bool = False

    @property
    def name(self) -> str:
        """Class name, for messages."""
        return type(self).__name__

    @property
    def kind(self) -> type:
        """The class whose rows may share one call of ``compute``."""
        return type(self)

    @classmethod
    def warm(cls, vocabulary: Vocabulary) -> None:
        """Fill caches that every request with this processor needs.

        Called on a server that allows the class, before the server is ready, and again if the
        server's tokenizer changes.

        Args:
            vocabulary: The tokens of the served model as bytes.
        """

    # Stages of parameters: the second is LogitProcessor.fit_params

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
        params = parse(cls.Params, cls.__name__, custom_params)
        if vocab_size is not None:
            check_vocabulary(params, cls.__name__, vocab_size)
        return params

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

    def serving(self, params: Any) -> Self:  # noqa: ARG002 - for a class that overrides it
        """Return the processor for a request with these parameters, by default ``self``.

        Override it where flags depend on parameters: return a new instance with other flags.

        Args:
            params: The request's own.
        """
        return self

    # In the course of a request

    @classmethod
    def read_of_prompt(cls, params: Any, length: int) -> int:  # noqa: ARG003 - some read a window
        """Return how many tokens of a prompt ``start`` reads, by default all of them.

        For a class with ``reads_prompt``: the tokens that are read between two steps are bounded.
        A search that takes a fraction of the time of a token read in Python counts as less.

        Args:
            params: Parsed and fitted parameters.
            length: Number of tokens of the prompt.
        """
        return length

    def rewind(self, request: Request) -> None:
        """Prepare to edit the same position again: SGLang dropped the token that it sampled.

        Called after a retraction. ``request.state`` has not seen the dropped token.

        Args:
            request: The request.
        """

    def plain(self, params: Any) -> dict[str, Any]:
        """Return parsed parameters as plain values, for a class that overrides ``__call__``."""
        return msgspec.to_builtins(params)  # type: ignore[no-any-return]
