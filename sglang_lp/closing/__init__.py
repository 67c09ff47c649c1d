"""Complete structured answers within a limit of tokens: the automaton, distances and plans.

A grammar is a byte automaton with calls (``automaton``), whose shortest ways to an end are known
for every state (``distances``). A text is a state of it (``states``), and a vocabulary says which
state follows each token (``maps``). A plan is a short way from a state to a complete text in
tokens (``plans``). While the room that is left is short, ``row.ClosingRow`` keeps only tokens after
which a plan still fits.

The package needs numpy, and neither SGLang nor torch.
"""
