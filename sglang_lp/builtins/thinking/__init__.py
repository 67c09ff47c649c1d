"""Thinking budgets: one processor, with a class of its own for each known model family.

``families`` has a row for each model family; a new one is added there. ``known`` says what a row
holds, ``delimiters`` finds the same in a tokenizer, ``progress`` follows the blocks of a request,
``budget`` is the processor, and ``stock`` is how it works on a server without the plugin.
"""
