"""The parameter ``where``: the phase of an answer in which a rule holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.params import Parameters

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.delimiters import Delimiters
    from sglang_lp.builtins.thinking.finder import Finder
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.served_model import ServedModel

# A client loads no more than the parameters: only a server looks for thinking.


class Phase(str):
    """The value of ``where`` for a served model: ``"thinking"`` or ``"answer"``.

    Attributes:
        finder: The delimiters of thinking.
        inside: Whether a block is open before the first token, whatever the prompt says.
    """

    __slots__ = ("finder", "inside")

    finder: Finder
    inside: bool

    def __new__(cls, where: str, finder: Finder, *, inside: bool = False) -> Self:
        """Make the value.

        Args:
            where: ``"thinking"`` or ``"answer"``.
            finder: The delimiters of thinking.
            inside: As for the class.
        """
        made = super().__new__(cls, where)
        made.finder, made.inside = finder, inside
        return made


class PhasedParams(Parameters, frozen=True, kw_only=True):
    """The parameters of a rule that may hold in one phase of the answer only.

    Attributes:
        where: The part of the output in which the rule holds, and whose tokens count:
            ``"thinking"`` is inside of thinking blocks, ``"answer"`` is outside of them.
    """

    where: Literal["everywhere", "thinking", "answer"] = "everywhere"

    def fit_phase(self, processor: str, served: ServedModel) -> Self:
        """Return the parameters with the delimiters of the served model in ``where``.

        Raises:
            InvalidParameter: The delimiters cannot be known.
        """
        if self.where == "everywhere":
            return self
        from sglang_lp.builtins.thinking.finder import BlockTokens
        from sglang_lp.builtins.thinking.known import TOOL_STARTS
        from sglang_lp.builtins.thinking.served import served_finder

        found = find_delimiters(processor, self, served)
        finder = served_finder(BlockTokens(found.start_ids, found.end_ids), served, TOOL_STARTS)
        return msgspec.structs.replace(self, where=Phase(self.where, finder))

    def begin_inside(self) -> Self:
        """Return the parameters for an answer that SGLang may parse as thinking from its start.

        Parameters whose delimiters are not those of the served reasoning parser stay as they are.
        """
        where: Any = self.where
        if not isinstance(where, Phase) or not where.finder.reads_text:
            return self
        return msgspec.structs.replace(self, where=Phase(where, where.finder, inside=True))

    def serve_phase(self, processor: LogitProcessor) -> LogitProcessor:
        """Return the processor, limited to its phase."""
        where: Any = self.where
        if not isinstance(where, Phase):
            return processor
        from sglang_lp.builtins.in_phase import InPhase

        return InPhase(processor, where, where.finder, begins_inside=where.inside)


def find_delimiters(processor: str, params: Any, served: ServedModel) -> Delimiters:
    """Return the delimiters of the phases.

    Args:
        processor: The processor's class name, for the message.
        params: Its parameters, which may name the delimiters.
        served: The model.

    Raises:
        InvalidParameter: They cannot be known.
    """
    from sglang_lp.builtins.thinking.delimiters import resolve
    from sglang_lp.builtins.thinking.served import delimiter_texts
    from sglang_lp.text.encoding import require_tokenizer

    require_tokenizer(processor, "where", served.tokenizer)
    try:
        return resolve(served.tokenizer, *delimiter_texts(params, served))
    except RequestError as error:
        problem = str(error).partition("; ")[0]
        raise InvalidParameter(
            processor, "where", f"{problem}; leave it out, or serve with --reasoning-parser"
        ) from None
