"""Processors in SGLang's beam search: every beam is a row of its own.

A request with ``beam_width`` has one request object, the leader, and ``beam_width`` rows of logits
at each step. SGLang selects the next beams on the device, before the next step begins. Edits are
applied to all rows before that selection.

==================  ===============================================================================
word                meaning
==================  ===============================================================================
beam                One of the answers that a beam search continues.
choice              The beams that a step selected, each as its parent and its token.
dead beam           A place that no possible continuation took: its score is ``-inf``.
==================  ===============================================================================

A processor that needs the tokens (``History.TOKENS``) makes the host wait for the latest choice,
once a step for all groups; others never wait.
"""
