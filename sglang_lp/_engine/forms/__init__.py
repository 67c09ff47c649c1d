"""Forms in a batch: which rows run by a form, the tokens that they got, and their edits.

:mod:`sglang_lp.forms` has what the forms of built-ins are made of.
"""
