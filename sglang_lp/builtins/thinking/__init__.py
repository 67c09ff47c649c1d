"""Thinking budgets: one processor, with a class of its own for each known model family.

- ``families``: a class for each model family; a new family is added there.
- ``known``: the delimiters of a family and of a reasoning parser, as data.
- ``delimiters``: the same delimiters looked up in a tokenizer.
- ``finder``: the delimiters of a request, compiled.
- ``progress``: the state of a request; ``blocks``, the blocks of a finished answer.
- ``params``: the parameters; ``budget``, the processor; ``rules``, its edits at one step.
- ``loops``: loops at the end of a block.
- ``stock``: the budget on a server without the plugin.
- ``block_report``: the report of an answer.
"""
