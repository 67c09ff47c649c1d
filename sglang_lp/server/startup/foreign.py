"""Classes of other engines, made once per scheduler before it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.adapters import AdaptedProcessor, EngineSettings
from sglang_lp.served_model import ServedModel

if TYPE_CHECKING:
    from sglang_lp.trust import Verifier


def begin(verifier: Verifier, scheduler: Any) -> None:
    """Make the instances that all requests of this process share.

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
    tokenizer = getattr(scheduler, "tokenizer", None)
    arguments, model = scheduler.server_args, scheduler.model_config
    served = ServedModel.of(tokenizer, model.vocab_size, model.hf_eos_token_id)
    engine = EngineSettings(
        device=str(scheduler.tp_worker.model_runner.device),
        vocab_size=model.vocab_size,
        max_requests=scheduler.max_running_requests,
        max_length=model.context_len,
        model=str(arguments.model_path),
        tokenizer=str(arguments.tokenizer_path or arguments.model_path),
        trust_remote_code=bool(arguments.trust_remote_code),
        decodes=arguments.disaggregation_mode != "prefill",
        eos_token_id=getattr(tokenizer, "eos_token_id", None),
        eos_token_ids=served.eos_token_ids,
    )
    for processor in adapted:
        processor.begin(engine)
