"""Failures of the contract suite in words: expected, got, the history, and a hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from sglang_lp.testing.cases import Case

#: Most tokens of a history, and most differences, that a failure shows.
_TOKENS, _DIFFERENCES = 16, 4


def check(ok: bool, message: str) -> None:  # noqa: FBT001 - reads as an assertion
    """Fail a test unless a condition holds.

    Raises:
        AssertionError: It does not hold.
    """
    if not ok:
        raise AssertionError(message)


def check_rows(  # noqa: PLR0913, PLR0917 - what a failure shows
    what: str,
    cases: Sequence[Case],
    before: torch.Tensor,
    got: torch.Tensor,
    expected: torch.Tensor,
    hint: str,
) -> None:
    """Fail a test unless all rows have the expected bits.

    Args:
        what: The rule that is broken.
        cases: The request of each row.
        before: The logits before the edits, shape ``(rows, vocab)``.
        got: The edited logits.
        expected: The logits that they should be.
        hint: The usual cause.

    Raises:
        AssertionError: A row differs.
    """
    if same_bits(got, expected):
        return
    for row, case in enumerate(cases):
        if not same_bits(got[row], expected[row]):
            lines = _lines(what, case, before[row], got[row], expected[row], hint)
            raise AssertionError("\n".join(lines))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype and the same bits."""
    return a.dtype == b.dtype and bool((bits(a) == bits(b)).all())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of floats as integers."""
    import torch

    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(kind)


def _lines(  # noqa: PLR0913, PLR0917 - as above
    what: str,
    case: Case,
    before: torch.Tensor,
    got: torch.Tensor,
    expected: torch.Tensor,
    hint: str,
) -> list[str]:
    ids = (bits(got) != bits(expected)).nonzero().flatten().tolist()
    more = f", and {len(ids) - _DIFFERENCES} more" if len(ids) > _DIFFERENCES else ""
    ids = ids[:_DIFFERENCES]
    return [
        what,
        f"  params    {dict(case.params)}",
        f"  prompt    {_short(case.prompt_ids)}",
        f"  output    {_short(case.output_ids)}, so this is step {len(case.output_ids)}",
        f"  expected  {'; '.join(_fate(i, before, expected) for i in ids)}{more}",
        f"  got       {'; '.join(_fate(i, before, got) for i in ids)}{more}",
        f"  hint      {hint}",
    ]


def _fate(token_id: int, before: torch.Tensor, after: torch.Tensor) -> str:
    """Describe the change of a token's logit."""
    old, new = before[token_id], after[token_id]
    if same_bits(old, new):
        return f"token {token_id} unchanged"
    if new == float("-inf"):
        return f"token {token_id} banned"
    return f"token {token_id} from {old:.4g} to {new:.4g}"


def _short(token_ids: Sequence[int]) -> str:
    if len(token_ids) <= _TOKENS:
        return str([*token_ids])
    rest = len(token_ids) - _TOKENS
    return f"[{rest} more, {', '.join(map(str, token_ids[-_TOKENS:]))}]"
