"""SGLang's own processors: their names, and their refusals by a policy that denies them."""

from __future__ import annotations

from enum import StrEnum

from sglang_lp.errors import RefusalReason
from sglang_lp.trust.allow_list import Advice

#: SGLang's module of processors.
STOCK_MODULE = "sglang.srt.sampling.custom_logit_processor"

#: SGLang's processors, each a built-in of the same name. Left out is ThinkingBudgetLogitProcessor,
#: a base class without token ids that fails on the first call.
STOCK = (
    (STOCK_MODULE, "DeepSeekR1ThinkingBudgetLogitProcessor"),
    (STOCK_MODULE, "DeepseekOCRNoRepeatNGramLogitProcessor"),
    (STOCK_MODULE, "DisallowedTokensLogitsProcessor"),
    (STOCK_MODULE, "Glm4MoeThinkingBudgetLogitProcessor"),
    (STOCK_MODULE, "InklingThinkingBudgetLogitProcessor"),
    (STOCK_MODULE, "Qwen3ThinkingBudgetLogitProcessor"),
)
_BASE = "ThinkingBudgetLogitProcessor"

#: Processors in the file of a model. ``stock = "allow"`` leaves them out, because not every server
#: has the model: the operator allows them by name.
MODEL_STOCK = (("sglang.srt.models.locate_anything", "LocateAnythingBoxGrammarLogitProcessor"),)


class Stock(StrEnum):
    """The policy for payloads of SGLang's own processors."""

    #: They run this toolkit's processor of the same name.
    UPGRADE = "upgrade"
    #: They run SGLang's own code.
    ALLOW = "allow"
    #: They are refused.
    DENY = "deny"


def advise(stock: Stock, builtins: str) -> dict[tuple[str, str], Advice]:
    """Return the refusals of SGLang's classes that this policy does not allow.

    Args:
        stock: The policy for SGLang's processors.
        builtins: Module of this toolkit's processors.
    """
    base = Advice(
        RefusalReason.NOT_ALLOWED,
        "it is a base class without token ids: use the class of your model, "
        f"or {builtins}:{_BASE}, which takes them as parameters",
    )
    advice = {(STOCK_MODULE, _BASE): base}
    if stock == Stock.DENY:
        denied = Advice(RefusalReason.DENIED, f"use the class of the same name in {builtins}")
        advice |= dict.fromkeys((*STOCK, *MODEL_STOCK), denied)
    return advice
