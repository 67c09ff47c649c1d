"""Edits of a batch, applied to its logits with a fixed number of tensor operations.

Reads compiled edits and recordings, and knows no history. What differs between devices is in
:mod:`sglang_lp._engine.apply.cpu` and :mod:`sglang_lp._engine.apply.cuda`.
"""
