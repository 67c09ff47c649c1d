r"""A processor of your own in ten lines, and what can be done with it without a server.

$ python examples/own_processor.py
payload  {"callable": "80049521000000000000008c0d6f776e5f70726f636573736f72948c0b4e6f4561726c7953746f709493942e"}
params   Params(eos_token_ids=(2,), min_tokens=3)
refused  NoEarlyStop: parameter 'min_tokens': expected int >= 0, got -1
logits   [[0.5, 1.5, -inf, 2.5], [0.5, 1.5, 3.5, 2.5]]
"""  # noqa: E501 - a payload is one line

from sglang_lp import Edits, LogitProcessor, Parameters, Request
from sglang_lp.params import NonNegativeInt, TokenIds


class NoEarlyStop(LogitProcessor):
    """Keep the end-of-sequence tokens out of the first ``min_tokens`` tokens."""

    class Params(Parameters, frozen=True):
        """What a request may set."""

        eos_token_ids: TokenIds
        min_tokens: NonNegativeInt = 0

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the tokens while they would come too early."""
        if request.position < request.params.min_tokens:
            edits.ban(request.params.eos_token_ids)


def main() -> None:
    """Write its payload, check parameters, and edit the logits of two requests."""
    import torch

    # By the name that a server imports it under: a class of __main__ would travel as code.
    from own_processor import NoEarlyStop as Processor

    from sglang_lp.errors import InvalidParameter
    from sglang_lp.testing import FakeRequest

    print("payload ", Processor.to_str())
    params = {"eos_token_ids": [2], "min_tokens": 3}
    print("params  ", Processor.parse_params(params))
    try:
        Processor.parse_params({"eos_token_ids": [2], "min_tokens": -1})
    except InvalidParameter as error:
        print("refused ", error)

    new, old = FakeRequest([7, 8]), FakeRequest([7, 8], output_ids=[1, 1, 3])
    logits = torch.tensor([[0.5, 1.5, 3.5, 2.5]] * 2)
    logits = Processor()(logits, [new.custom_params(params), old.custom_params(params)])
    print("logits  ", logits.tolist())


if __name__ == "__main__":
    main()
