"""The history of each request, and the row that follows it.

Read by the step (:mod:`sglang_lp._engine.step`) and written by the host of the request.
"""
