"""Classes of other engines that are made once for a scheduler: before it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.adapters import AdaptedProcessor, EngineSettings
from sglang_lp.errors import PolicyError
from sglang_lp.server.installation import refuse

if TYPE_CHECKING:
    from sglang_lp.trust import Verifier

__all__ = ["begin"]


def begin(verifier: Verifier, scheduler: Any) -> None:
    """Make what all requests of this process share; end the process if a class cannot be made.

    Args:
        verifier: Knows the classes.
        scheduler: SGLang's ``Scheduler``.
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
        try:
            processor.begin(engine)
        except PolicyError as error:
            refuse(str(error))
