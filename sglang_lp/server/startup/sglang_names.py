"""Dotted names of SGLang's modules and classes, for the tables of hooks and attributes.

Each is a prefix, to which a table adds the name of a class, a method or a function.
"""

from __future__ import annotations

SRT = "sglang.srt."
ENGINE = SRT + "entrypoints.engine."
OPENAI = SRT + "entrypoints.openai."
STOCK = SRT + "sampling.custom_logit_processor."
PARAMS = SRT + "sampling.sampling_params."
ARGS = SRT + "server_args."
MANAGER = SRT + "managers.tokenizer_manager.TokenizerManager."
SCHEDULER = SRT + "managers.scheduler.Scheduler."
BATCH = SRT + "managers.schedule_batch."
REQUEST = BATCH + "Req."
DECODE = SRT + "disaggregation.decode."
GRAMMARS = SRT + "constrained."
BEAMS = SRT + "beam_search."
COORDINATOR = BEAMS + "coordinator.BeamCoordinator."
GROUP = BEAMS + "beam_group.BeamGroup."
CHAINS = SRT + "speculative.dflash_info."
CONNECTION = SRT + "disaggregation.common.conn.CommonKV"
OLLAMA = SRT + "entrypoints.ollama.serving.OllamaServing."
ANTHROPIC = SRT + "entrypoints.anthropic.serving.AnthropicServing."
