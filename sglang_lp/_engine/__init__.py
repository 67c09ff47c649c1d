"""The engine: runs the processors of a batch of requests, and edits the logits of the batch.

Private. Authors write against :mod:`sglang_lp.processor`, :mod:`sglang_lp.request` and
:mod:`sglang_lp.edits`. The scheduler's hooks (:mod:`sglang_lp.server.scheduler`) call
:class:`~sglang_lp._engine.batch.Batch`, and so does a processor that SGLang calls itself
(:mod:`sglang_lp._engine.stock`). The engine knows a host
(:mod:`sglang_lp._engine.history.host`), but not SGLang.

Imports run one way: ``compiled`` < ``apply`` < ``history`` < ``step`` < ``draft_walk``,
``raw_rows`` < ``batch`` < ``stock``.

===================  ==============================================================================
word                 meaning
===================  ==============================================================================
row                  A request in the batch: its processor, the history that was fed, when it wakes.
row of the logits    One row of the tensor: a request has one, or one for each node of its draft.
host                 The interface to whatever runs the request: SGLang, a unit test, a replay.
accept tokens        Read the history from the host and feed new tokens to the processor.
resumed tokens       Tokens at the end of a prompt that the processor treats as generated.
step                 One call of the sampler. A *verify step* has ``width`` rows for each request.
clock, wake          The clock counts the most tokens that a request can have got. A row sleeps
                     until a reading of the clock; a batch sleeps while all its rows do.
version              Number of a change; a cached plan is current while its versions are.
recording            The edits that one call of ``edit`` declared.
step edits           Edits of one step.
persistent edits     Edits of every step from now on: *always* edits (``Edits.always``) and *held*
                     edits (``Edits.hold_until``), which the next call of ``edit`` replaces.
compiled edits       Edits that were checked and summed once; copies of a request share them.
wide edits           Edits of thousands of tokens, applied as a mask of the whole row.
token mask           One byte for each token of the vocabulary: 1 if it is possible.
conflict             Edits that leave no token. They end the request.
plan                 All edits of a batch as index tensors on the device; ``PlanBuilder`` is the
                     plan on the host.
guarded row          A row in which edits and SGLang's own masks could together leave no token.
question             ``force_if``: a comparison of logits that the device answers.
whole row            A row of logits that a processor computes itself.
raw logprobs         The model's own logprobs of edited tokens.
form                 All rows of one built-in in a batch, which one compiled call feeds and edits.
edit log             The positions at which a request was edited, for its report.
===================  ==============================================================================
"""
