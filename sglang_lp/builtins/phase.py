"""The parameter ``where``: the phase of an answer in which a rule holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.params import Parameters

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.delimiters import Delimiters
    from sglang_lp.builtins.thinking.phases import ThinkingPhase
    from sglang_lp.served_model import ServedModel

# A client loads no more than the parameters: only a server looks for thinking.


class PhasedParams(Parameters, frozen=True, kw_only=True):
    """The parameters of a rule that may hold in one phase of the answer only.

    Attributes:
        where: The part of the output in which the rule holds, and whose tokens count:
            ``"thinking"`` is inside of thinking blocks, ``"answer"`` is outside of them.
    """

    where: Literal["everywhere", "thinking", "answer"] = "everywhere"

    def find_phase(self, processor: str, served: ServedModel) -> ThinkingPhase | None:
        """Return the phase, with the delimiters of the served model.

        Raises:
            InvalidParameter: The delimiters cannot be known.
        """
        if self.where == "everywhere":
            return None
        from sglang_lp.builtins.thinking.finder import BlockTokens
        from sglang_lp.builtins.thinking.known import TOOL_STARTS
        from sglang_lp.builtins.thinking.phases import ThinkingPhase
        from sglang_lp.builtins.thinking.served import served_finder

        found = find_delimiters(processor, self, served)
        finder = served_finder(BlockTokens(found.start_ids, found.end_ids), served, TOOL_STARTS)
        return ThinkingPhase(self.where == "thinking", finder)


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
