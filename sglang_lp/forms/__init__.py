"""Forms: all rows of one kind in a batch, edited by one compiled call a step.

``edit`` says what a processor means for one row. A built-in may have a form as well, which does the
same for all its rows at once, below Python. It is optional: where a form cannot run, rows are asked
one by one. Server processes only; needs numba, which SGLang pins.

:class:`~sglang_lp.forms.form.Form` is the interface of a form,
:mod:`sglang_lp._engine.forms` runs forms in a batch.
"""
