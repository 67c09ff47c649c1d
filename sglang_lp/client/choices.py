"""The probabilities of the choices of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sglang_lp.errors import RequestError
from sglang_lp.wire.names import REPORT

__all__ = ["Probabilities", "Scored", "probabilities"]


class Scored(NamedTuple):
    """One choice, as the model sees it.

    Attributes:
        probability: Its probability among the choices.
        logprob: The model's own logprob of the choice as the continuation of the prompt, in the
            tokens that the tokenizer writes it with, in nats. If another choice begins with it:
            the logprob of the choice and an end token.
        all_spellings: Logprob of the choice in any of the tokens that spell it; ``None`` if there
            are too many ways.
        token_ids: The tokens that the tokenizer writes it with.
    """

    probability: float
    logprob: float
    all_spellings: float | None
    token_ids: tuple[int, ...]


class Probabilities(Mapping[Any, float]):
    """The probability of each choice, by its text; of a choice of token ids, by their tuple.

    Attributes:
        scored: Everything that is known of each choice.
    """

    def __init__(self, scored: Mapping[Any, Scored]) -> None:
        self.scored = scored

    def __getitem__(self, choice: Any) -> float:
        return self.scored[choice].probability

    def __iter__(self) -> Iterator[Any]:
        return iter(self.scored)

    def __len__(self) -> int:
        return len(self.scored)

    def __repr__(self) -> str:
        return f"Probabilities({dict(self)})"

    @property
    def likeliest(self) -> Any:
        """The likeliest choice."""
        return max(self, key=self.__getitem__)

    @property
    def expected(self) -> float:
        """The expected value of a scale, such as ``"1"`` to ``"5"``.

        Raises:
            ValueError: A choice is no number.
        """
        return sum(float(choice) * chance for choice, chance in self.items())


def probabilities(answer: Any, choice: int = 0) -> Probabilities:
    """Return the probabilities of the choices of a request with ``pick``.

    Args:
        answer: JSON of ``/generate``, ``/v1/completions`` or ``/v1/chat/completions``, the dict of
            ``Engine.generate``, or an object of the ``openai`` client. OpenAI's endpoints report
            with ``"return_meta_info": true``.
        choice: Index of the answer, if there are several.

    Raises:
        RequestError: The answer has no probabilities.
    """
    if hasattr(answer, "model_dump"):
        answer = answer.model_dump()
    several = answer.get("choices", [answer]) if isinstance(answer, Mapping) else answer
    chosen = several[choice] if isinstance(several, list) and choice < len(several) else {}
    found: Any = chosen
    for key in ("meta_info", REPORT, "choices"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise RequestError(
            "the answer: expected one with the probabilities of choices, got none; send pick with "
            'ChoiceLogitProcessor, and on OpenAI\'s endpoints "return_meta_info": true'
        )
    scored = {}
    for one in found["texts"]:
        ids = tuple(one["token_ids"])
        own = Scored(one["probability"], one["logprob"], one.get("all_spellings"), ids)
        scored[one.get("text", ids)] = own
    return Probabilities(scored)
