"""What a processor can do to the next token of its request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sglang_lp.request import Answer

__all__ = ["LENGTH", "MAX_BIAS", "NEVER", "STOP", "Edits", "End"]

#: Largest bias on a logit, either way, all biases on it taken together. Far beyond any effect,
#: and safe in float16.
MAX_BIAS = 10_000.0

#: A position that no request reaches.
NEVER = 1 << 62

#: Kinds of ends: what the client gets as the type of the finish reason.
STOP, LENGTH = "stop", "length"


class End(NamedTuple):
    """An end of a request that a processor decided.

    Attributes:
        reason: A few words.
        kind: ``STOP`` or ``LENGTH``.
    """

    reason: str
    kind: str


class Edits(ABC):
    """Takes the edits of one request at one step.

    Edits are declarations, so their order does not matter: biases add up, ``allow_only`` sets
    intersect, ``ban`` takes away, and ``force`` leaves one token. Edits that contradict each
    other change nothing: the request ends with an error.

    Attributes:
        vocab_size: Number of logits in a row.
    """

    vocab_size: int

    @abstractmethod
    def ban(self, token_ids: Iterable[int]) -> None:
        """Set the logits of these tokens to ``-inf``.

        Args:
            token_ids: Ids in ``[0, vocab)``. None at all is allowed and does nothing.

        Raises:
            ProcessorFault: An id is outside the vocabulary.
        """

    @abstractmethod
    def allow_only(self, token_ids: Iterable[int]) -> None:
        """Set the logits of all other tokens to ``-inf``; these keep theirs.

        Args:
            token_ids: Ids in ``[0, vocab)``, at least one.

        Raises:
            ProcessorFault: No id, or one outside the vocabulary.
        """

    @abstractmethod
    def force(self, token_id: int) -> None:
        """Make this the next token: its logit becomes 0.0 and every other one ``-inf``.

        Args:
            token_id: An id in ``[0, vocab)``.

        Raises:
            ProcessorFault: The id is outside the vocabulary.
        """

    @abstractmethod
    def force_if(self, answer: Answer, token_id: int) -> Edits:
        """Make this the next token if the answer to a question about the logits is yes.

        Nobody waits for the answer: on a GPU it is known and applied there, and the host learns of
        it once the token has come. ::

            otherwise = edits.force_if(request.is_among_top(ends, 1), wait)
            otherwise.ban(ends)

        It is for one step: not on what :meth:`always` returned, and not with :meth:`hold_until`.
        ``edit`` is called again at the next step, unless :meth:`wake_at` says otherwise for both
        answers.

        Args:
            answer: What :meth:`~sglang_lp.request.Request.is_among_top` returned at this step, or
                true or false.
            token_id: An id in ``[0, vocab)``. Forced as by :meth:`force`.

        Returns:
            Edits that are declared for the other answer alone; not for :meth:`pool`. What is
            declared on these edits holds for both.

        Raises:
            ProcessorFault: The id is outside the vocabulary.
        """

    @abstractmethod
    def bias(self, token_ids: Iterable[int], values: Iterable[float] | float) -> None:
        """Add to the logits of these tokens.

        Args:
            token_ids: Ids in ``[0, vocab)``. An id given twice gets the sum.
            values: One finite number for each id, or one for all of them, at most ``MAX_BIAS``
                (10,000) either way. A sum beyond that is cut there.

        Raises:
            ProcessorFault: An id is outside the vocabulary, the lengths differ, or a value is
                not finite or too large.
        """

    @abstractmethod
    def pool(self, token_ids: Iterable[int], into: int) -> None:
        """Give a token the probability of others, in place of its own; they keep none.

        The logit of ``into`` becomes the logarithm of the sum of their exponentials, computed in
        float32, and theirs ``-inf``. This comes before all other edits, of :meth:`always` too;
        several of one step are done in order.

        Args:
            token_ids: Ids in ``[0, vocab)``, each once. None at all is allowed and does nothing.
            into: An id in ``[0, vocab)``, not one of them.

        Raises:
            ProcessorFault: An id is outside the vocabulary, or ``into`` is among the others.
        """

    @abstractmethod
    def add(self, other: Edits) -> None:
        """Declare the edits that another processor declared, for a processor that runs others.

        Only the edits of this step are added. The processor reads itself what holds longer, when
        the other one runs again and whether the request ends: attributes ``standing``, ``wake``
        and ``end`` of a :class:`~sglang_lp.processor.Recording`.

        Args:
            other: The ``Recording`` that the other processor's ``edit`` got. Not changed.

        Raises:
            ProcessorFault: ``other`` is no ``Recording``.
        """

    @abstractmethod
    def always(self) -> Edits:
        """Return edits that hold at this step and every later one of the request.

        Declare them once: they are compiled once, and cost a step nothing but their writes. They
        are applied before the edits of a step, so a bias on top of another is rounded twice.
        """

    @abstractmethod
    def wake_at(self, position: int) -> None:
        """Promise that this request needs no edit before a position.

        Until then ``edit`` is not called. Tokens that come meanwhile still reach ``advance``, all
        at once.

        Args:
            position: Index of a generated token; 0 is the first.
        """

    @abstractmethod
    def hold_until(self, position: int) -> None:
        """Promise that the edits of this request stay those declared now, up to a position.

        Until then ``edit`` is not called and they hold at every step: they are compiled once, as
        those of :meth:`always`. Replaces :meth:`wake_at`; not for a step with :meth:`pool`.

        Args:
            position: Index of the first generated token that they are not for.
        """

    @abstractmethod
    def rest(self) -> None:
        """Promise that this request needs no edit any more, except those of :meth:`always`."""

    @abstractmethod
    def finish(self, reason: str, kind: str = STOP) -> None:
        """End the request with the token that is sampled now.

        Unlike an error it keeps the answer. Does nothing where no server runs the request.

        Args:
            reason: A few words for the client.
            kind: Type of the finish reason. With ``STOP`` the reason stands in the place of a
                matched stop string, and is unlike anything that a model writes: SGLang cuts the
                answer where it finds it. With ``LENGTH`` the answer counts as truncated, nothing
                is cut, and ``/generate`` has the reason as ``finish_reason["reason"]``.

        Raises:
            ProcessorFault: The reason is no text, or the kind is neither.
        """
