"""The parameter ``where``: the phase of an answer in which a rule holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.params import Parameters

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.delimiters import Delimiters
    from sglang_lp.builtins.thinking.phases import ThinkingPhase
    from sglang_lp.served_model import ServedModel

Where = Literal["everywhere", "thinking", "answer"]

# A client loads no more than the parameters: only a server looks for thinking.


class PhasedParams(Parameters, frozen=True, kw_only=True):
    """The parameters of a rule that may hold in one phase of the answer only.

    Attributes:
        where: The part of the output in which the rule holds, and whose tokens count:
            ``"thinking"`` is inside of thinking blocks, ``"answer"`` is outside of them.
    """

    #: Whether the rule makes the content of an answer, which headers are no part of.
    of_content: ClassVar[bool] = False

    where: Where | None = "everywhere"

    def find_phase(self, processor: str, served: ServedModel) -> ThinkingPhase | None:
        """Return the phase, with the delimiters of the served model.

        Raises:
            InvalidParameter: The delimiters cannot be known.
        """
        split = self.of_content and served.splits
        where = self.where or ("answer" if split else "everywhere")
        if where == "everywhere":
            return None
        from sglang_lp.builtins.thinking.finder import BlockTokens
        from sglang_lp.builtins.thinking.known import TOOL_STARTS
        from sglang_lp.builtins.thinking.phases import ThinkingPhase
        from sglang_lp.builtins.thinking.served import served_finder

        found = find_delimiters(processor, self, served)
        finder = served_finder(BlockTokens(found.start_ids, found.end_ids), served, TOOL_STARTS)
        form, is_thinking = served.reasoning, where == "thinking"
        headed = split and not is_thinking and form is not None and form.headed
        return ThinkingPhase(is_thinking, finder, headed=headed)


class AnswerParams(PhasedParams, frozen=True, kw_only=True):
    """The parameters of a rule that says what the answer is, and not how the model thinks.

    Attributes:
        where: The part of the output in which the rule holds, and whose tokens count:
            ``"thinking"`` is inside of thinking blocks, ``"answer"`` is outside of them. Left out:
            ``"answer"`` in a chat whose answer SGLang splits by a reasoning parser, else
            ``"everywhere"``.
    """

    of_content = True

    where: Where | None = None


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
