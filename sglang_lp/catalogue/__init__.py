"""Catalogues: item ids as sequences of tokens, and an index that says which token may come next.

A generative recommender names an item by a few tokens. Only some sequences name an item of the
catalogue; the index restricts the next token to tokens that lead to an item.

``build`` sorts the items of an operator into an :class:`Index`, ``file`` stores and maps it,
``sets`` marks the nodes that lead to an item of a named set, ``items`` reads an operator's files.
The package needs numpy; reading tables needs pyarrow.
"""
