"""Runs processors on batches: rows, their histories and drafts, the plan of a step.

Private: what an author writes against is :mod:`sglang_lp.processor`, :mod:`sglang_lp.request` and
:mod:`sglang_lp.edits`. Knows a host (:mod:`sglang_lp._engine.history.host`) and nothing of
SGLang.
"""
