"""A processor of your own in a few lines, tried and tested without a server.

$ python examples/own_processor.py
params   Params(token_ids=frozenset({3}), at_most=2)
refused  at_most of AtMost: expected a whole number of 0 or more, got -1
logits   [[0.5, 1.5, 3.5, 2.5], [0.5, 1.5, 3.5, -inf]]
"""

from collections.abc import Sequence

from sglang_lp import Edits, LogitProcessor, Parameters, Request
from sglang_lp.params import NonNegativeInt, TokenIdSet


class AtMost(LogitProcessor):
    """Allow some tokens, such as dashes, ``at_most`` times in one answer."""

    class Params(Parameters, frozen=True):
        """Parameters of a request."""

        token_ids: TokenIdSet
        at_most: NonNegativeInt

    def start(self, request: Request[Params, int]) -> int:
        """Start at 0: tokens of the prompt do not count."""
        return 0

    def advance(self, request: Request[Params, int], token_ids: Sequence[int]) -> None:
        """Count generated tokens: every token comes here exactly once."""
        request.state += sum(token_id in request.params.token_ids for token_id in token_ids)

    def edit(self, request: Request[Params, int], edits: Edits) -> None:
        """Ban the tokens once they were generated ``at_most`` times."""
        if request.state >= request.params.at_most:
            edits.ban(request.params.token_ids)


def main() -> None:
    """Check parameters, and edit the logits of two requests."""
    import torch

    from sglang_lp.errors import InvalidParameter
    from sglang_lp.testing import FakeRequest

    params = {"token_ids": [3], "at_most": 2}
    print("params  ", AtMost.parse_params(params))
    try:
        AtMost.parse_params({"token_ids": [3], "at_most": -1})
    except InvalidParameter as error:
        print("refused ", error)

    new, old = FakeRequest([7, 8]), FakeRequest([7, 8], output_ids=[3, 1, 3])
    logits = torch.tensor([[0.5, 1.5, 3.5, 2.5]] * 2)
    logits = AtMost()(logits, [new.custom_params(params), old.custom_params(params)])
    print("logits  ", logits.tolist())


if __name__ == "__main__":
    main()
