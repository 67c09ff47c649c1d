"""The edits that a processor can make to the next token of its request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sglang_lp.request import Answer
    from sglang_lp.watermark.marks import Mark

__all__ = ["LENGTH", "MAX_BIAS", "MAX_FACTOR", "NEVER", "STOP", "Edits", "End"]

#: Largest bias on a logit, either way, all biases on it taken together. Far beyond any effect,
#: and safe in float16.
MAX_BIAS = 10_000.0

#: Largest factor of the logits of a row; the smallest is its inverse.
MAX_FACTOR = 1000.0

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
    intersect, ``ban`` removes tokens, ``force`` leaves one token, and ``keep_near_top`` looks at
    the logits that the others leave. If edits contradict each other, no logit changes and the
    request ends with an error.

    Attributes:
        vocab_size: Number of logits in a row.
    """

    vocab_size: int

    @abstractmethod
    def ban(self, token_ids: Iterable[int]) -> None:
        """Set the logits of these tokens to ``-inf``.

        Args:
            token_ids: Ids in ``[0, vocab)``. An empty list does nothing.

        Raises:
            ProcessorFault: An id is outside the vocabulary.
        """

    @abstractmethod
    def allow_only(self, token_ids: Iterable[int]) -> None:
        """Set the logits of all other tokens to ``-inf``.

        Args:
            token_ids: Ids in ``[0, vocab)``, at least one.

        Raises:
            ProcessorFault: The list is empty, or an id is outside the vocabulary.
        """

    @abstractmethod
    def force(self, token_id: int) -> None:
        """Force the next token: its logit becomes 0.0, and every other logit ``-inf``.

        Args:
            token_id: An id in ``[0, vocab)``.

        Raises:
            ProcessorFault: The id is outside the vocabulary.
        """

    @abstractmethod
    def force_if(self, answer: Answer, token_id: int) -> Edits:
        """Force the next token if the answer to a question about the logits is yes.

        The host does not wait for the answer: a GPU applies it, and the host reads it with the
        sampled token. ::

            otherwise = edits.force_if(request.is_among_top(ends, 1), wait)
            otherwise.ban(ends)

        Only for one step: neither on the edits of :meth:`always` nor with :meth:`hold_until`.
        ``edit`` is called again at the next step; :meth:`wake_at` changes that for both answers.

        Args:
            answer: An answer of :meth:`~sglang_lp.request.Request.is_among_top` at this step, or a
                truth value.
            token_id: An id in ``[0, vocab)``, forced as by :meth:`force`.

        Returns:
            Edits that apply only if the answer is no; they take no :meth:`pool`. Edits declared
            on ``self`` apply in both cases.

        Raises:
            ProcessorFault: The id is outside the vocabulary.
        """

    @abstractmethod
    def bias(self, token_ids: Iterable[int], values: Iterable[float] | float) -> None:
        """Add to the logits of these tokens.

        Args:
            token_ids: Ids in ``[0, vocab)``. An id given twice gets the sum.
            values: A finite number for each id, or a number for all of them, at most ``MAX_BIAS``
                (10,000) in absolute value. A larger sum is clamped.

        Raises:
            ProcessorFault: An id is outside the vocabulary, the lengths differ, or a value is
                not finite or too large.
        """

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Multiply all logits of the row, after all other edits: a temperature of ``1 / factor``.

        SGLang divides by the temperature of the request afterwards, so the two multiply. A forced
        token keeps its logit of 0.0. In float16, products could be too large, so the largest logit
        of the row becomes 0.0 first; the probabilities are the same.

        Args:
            factor: From 0.001 to 1,000 (``MAX_FACTOR``). The largest counts if there are several.

        Raises:
            ProcessorFault: ``factor`` is out of range.
        """

    @abstractmethod
    def keep_near_top(self, sigmas: float) -> None:
        """Set the logits far below the largest to ``-inf``: top-n-sigma sampling.

        A token stays if its logit is at least ``max - sigmas * deviation``: the largest logit and
        the standard deviation (of the population) of the row's finite logits, after all other
        edits. So a banned token does not count, and a forced token stays. The device decides this
        by itself, with the same number of operations for any number of rows.

        A row in which the model wrote NaN or ``+inf`` does not change.

        Args:
            sigmas: A finite number above 0. The smallest counts if there are several.

        Raises:
            ProcessorFault: ``sigmas`` is out of range.
        """

    @abstractmethod
    def mark(self, mark: Mark) -> None:
        """Watermark the row, after all other edits, factors included.

        The device does it, with the same number of operations for any number of rows. A forced
        token stays. Only for one step: neither on the edits of :meth:`always` nor with
        :meth:`hold_until`. The first mark counts if there are several.

        Args:
            mark: The scheme, the tokens that seed it, and the sampling parameters of the request.
        """

    @abstractmethod
    def pool(self, token_ids: Iterable[int], into: int) -> None:
        """Replace the probability of a token by the sum of the probabilities of others.

        The logit of ``into`` becomes the logarithm of the sum of the others' exponentials, in
        float32; the logits of the others become ``-inf``. Pools come before all other edits, also
        before those of :meth:`always`, in the order in which they are declared.

        Args:
            token_ids: Ids in ``[0, vocab)``, each once. An empty list does nothing.
            into: An id in ``[0, vocab)`` that is not in ``token_ids``.

        Raises:
            ProcessorFault: An id is outside the vocabulary, or ``into`` is in ``token_ids``.
        """

    @abstractmethod
    def add(self, other: Edits) -> None:
        """Declare the edits that another processor declared, for a processor that runs others.

        Only the edits of this step are added. The other processor's *always* edits, its next
        position and its end are the attributes ``standing``, ``wake`` and ``end`` of its
        :class:`~sglang_lp.processor.Recording`; the processor that runs it reads them itself.

        Args:
            other: The ``Recording`` that the other processor's ``edit`` got. Not changed.

        Raises:
            ProcessorFault: ``other`` is no ``Recording``.
        """

    @abstractmethod
    def always(self) -> Edits:
        """Return edits that hold at this step and at every later step of the request.

        Declare them once: they are compiled once, and a step only writes them. They are applied
        before the edits of a step, so a bias on top of another bias is rounded twice.
        """

    @abstractmethod
    def wake_at(self, position: int) -> None:
        """Promise that this request needs no edit before a position.

        ``edit`` is not called before that position. The tokens up to it reach ``advance`` all at
        once.

        Args:
            position: Index of a generated token; 0 is the first.
        """

    @abstractmethod
    def hold_until(self, position: int) -> None:
        """Promise that the edits of this request stay those declared now, up to a position.

        ``edit`` is not called before that position, and the edits hold at every step: they are
        compiled once, as the edits of :meth:`always`. Replaces :meth:`wake_at`; not for a step
        with :meth:`pool`.

        Args:
            position: Index of the first generated token without these edits.
        """

    @abstractmethod
    def rest(self) -> None:
        """Promise that this request needs no more edits, except the edits of :meth:`always`."""

    @abstractmethod
    def finish(self, reason: str, kind: str = STOP) -> None:
        """End the request with the token that is sampled now.

        Unlike an error, the answer is kept. Without a server this does nothing.

        Args:
            reason: A few words for the client.
            kind: Type of the finish reason. ``STOP`` reports the reason as a matched stop string;
                SGLang cuts the answer where it contains that string, so give words that no model
                writes. ``LENGTH`` counts as truncated: nothing is cut, and ``/generate`` has the
                reason as ``finish_reason["reason"]``.

        Raises:
            ProcessorFault: The reason is no text, or the kind is unknown.
        """
