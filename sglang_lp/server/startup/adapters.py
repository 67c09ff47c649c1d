"""Classes of other engines that are made once for a scheduler: before it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.adapters import AdaptedProcessor, EngineSettings

if TYPE_CHECKING:
    from sglang_lp.trust import Verifier

__all__ = ["begin"]


def begin(verifier: Verifier, scheduler: Any) -> None:
    """Make what all requests of this process share.

    Args:
        verifier: Knows the classes.
        scheduler: SGLang's ``Scheduler``.

    Raises:
        PolicyError: A class cannot be made.
    """
    adapted = [
        allowed.processor
        for allowed in verifier.allowed
        if issubclass(allowed.processor, AdaptedProcessor)
    ]
    if not adapted:
        return
    arguments = scheduler.server_args
    engine = EngineSettings(
        device=str(scheduler.tp_worker.model_runner.device),
        vocab_size=scheduler.model_config.vocab_size,
        max_requests=scheduler.max_running_requests,
        max_length=scheduler.model_config.context_len,
        model=str(arguments.model_path),
        tokenizer=str(arguments.tokenizer_path or arguments.model_path),
        trust_remote_code=bool(arguments.trust_remote_code),
        decodes=arguments.disaggregation_mode != "prefill",
    )
    for processor in adapted:
        processor.begin(engine)
