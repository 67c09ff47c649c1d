"""vLLM's ``VllmConfig`` and ``SamplingParams``, made from SGLang's settings and parameters."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from sglang_lp.adapters.vllm_names import name

if TYPE_CHECKING:
    from sglang_lp.adapters.engine_settings import EngineSettings

#: SGLang's top_k of a request that has none.
_ALL = 1 << 30

#: SGLang's fields for vLLM's ``structured_outputs``.
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


class _ConfigPart:
    """A part of the settings; reading one that it lacks raises an error that names it."""

    def __init__(self, path: str, **values: Any) -> None:
        self._path = path
        self.__dict__.update(values)

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError(
            f"{self._path} has no {attribute} on SGLang; it has "
            + ", ".join(key for key in self.__dict__ if not key.startswith("_"))
        )


def make_config(engine: EngineSettings) -> Any:
    """Return the engine settings that processors read."""
    device = engine.device
    return _ConfigPart(
        "vllm_config",
        scheduler_config=_ConfigPart(
            "vllm_config.scheduler_config",
            max_num_seqs=engine.max_requests,
            async_scheduling=False,
        ),
        model_config=_ConfigPart(
            "vllm_config.model_config",
            model=engine.model,
            tokenizer=engine.tokenizer,
            tokenizer_mode="auto",
            tokenizer_revision=None,
            trust_remote_code=engine.trust_remote_code,
            max_model_len=engine.max_length,
            get_vocab_size=lambda: engine.vocab_size,
        ),
        device_config=_ConfigPart("vllm_config.device_config", device=device),
        speculative_config=None,
        reasoning_config=None,
    )


def make_params(values: dict[str, Any], sampling: Any, engine: EngineSettings | None = None) -> Any:
    """Return vLLM's ``SamplingParams`` of a request, which share nothing with others.

    Args:
        values: Its ``custom_params``, which become ``extra_args``.
        sampling: SGLang's ``SamplingParams``, or ``None`` where they are not known.
        engine: The settings of the server, for its end tokens; ``None`` if they are not known.
    """
    made = name("vllm.sampling_params", "SamplingParams")(extra_args=deepcopy(values) or None)
    ends: list[int] = []
    if sampling is not None:
        ends = sorted(sampling.stop_token_ids or ())
        for key, value in _known(sampling).items():
            setattr(made, key, value)
        if any(getattr(sampling, grammar) is not None for grammar in _GRAMMARS):
            made.__dict__.pop("structured_outputs", None)  # reading it says why it is missing
    of_model: tuple[int, ...] = () if engine is None else engine.eos_token_ids
    made.all_stop_token_ids.update(ends, of_model)
    if engine is not None and not made.ignore_eos:
        made._eos_token_id = engine.eos_token_id  # noqa: SLF001 - as vLLM's engine does
        ends = sorted({*ends, *({*of_model} - {engine.eos_token_id})})
    made.stop_token_ids = ends
    return made


def _known(sampling: Any) -> dict[str, Any]:
    """Return SGLang's sampling parameters under vLLM's names."""
    stop, greedy = sampling.stop_strs, is_greedy(sampling)
    return {
        "n": sampling.n,
        "temperature": 0.0 if greedy else sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": sampling.top_k if 1 < sampling.top_k < _ALL else 0,
        "min_p": 0.0 if greedy else sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.sampling_seed,
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": sampling.min_new_tokens,
        "ignore_eos": sampling.ignore_eos,
        "stop": [stop] if isinstance(stop, str) else [*(stop or ())],
        "include_stop_str_in_output": sampling.no_stop_trim,
        "skip_special_tokens": sampling.skip_special_tokens,
        "spaces_between_special_tokens": sampling.spaces_between_special_tokens,
        "logit_bias": sampling.logit_bias
        and {int(token_id): bias for token_id, bias in sampling.logit_bias.items()},
    }


def is_greedy(sampling: Any) -> bool:
    """Tell whether SGLang takes the likeliest token; it writes a temperature of 0 as top_k 1."""
    return sampling is not None and getattr(sampling, "top_k", None) == 1
