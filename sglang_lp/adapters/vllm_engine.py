"""What classes of vLLM have in common: parameters, and an object that is made for the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.adapters.adapted import AdaptedProcessor
from sglang_lp.adapters.vllm_config import make_config, make_params
from sglang_lp.adapters.vllm_names import vllm_names
from sglang_lp.errors import InvalidParameter, PolicyError, RequestError, shown

if TYPE_CHECKING:
    from sglang_lp.adapters.engine_settings import EngineSettings
    from sglang_lp.params import Parameters
    from sglang_lp.served_model import ServedModel

__all__ = ["VllmProcessor", "unwrapped"]


class VllmProcessor(AdaptedProcessor):
    """A class of vLLM that is made once for the engine and reads ``SamplingParams``."""

    @classmethod
    def unwrapped(cls, values: dict[str, Any]) -> dict[str, Any]:
        return unwrapped(values)

    @classmethod
    def fit_params(
        cls,
        params: Any,
        served: ServedModel,  # noqa: ARG003 - the class learns of it when it is made
    ) -> Parameters:
        """Let the class check the parameters.

        Raises:
            InvalidParameter: It refuses them.
        """
        try:
            cls.foreign.validate_params(make_params(params.values, None))
        except (ValueError, TypeError, KeyError) as error:
            why = shown(str(error) or type(error).__name__, 300)
            raise InvalidParameter(cls.title, None, f"the class refuses them: {why}") from error
        return params  # type: ignore[no-any-return]

    @classmethod
    def make_engine_object(cls, engine: EngineSettings, *states: Any) -> Any:
        """Make the object of the engine.

        Args:
            engine: What it may know of its server.
            states: What the constructor takes beside the settings.

        Raises:
            PolicyError: The class raises.
        """
        try:
            with vllm_names():
                return cls.foreign(make_config(engine), *states)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {shown(str(error), 300)}"
            raise PolicyError(f"{cls.title}: cannot be made: {why}") from error

    @classmethod
    def make_v1_object(cls, engine: EngineSettings) -> Any:
        """Make an object of the V1 interface, as :meth:`make_engine_object`."""
        import torch

        device = torch.device(engine.device)
        return cls.make_engine_object(engine, device, device.type == "cuda")


def unwrapped(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with those in ``vllm_xargs``, vLLM's field for them, beside the others.

    Raises:
        RequestError: No object of parameters, or one that is given beside them, too.
    """
    if "vllm_xargs" not in values:
        return values
    rest = {key: value for key, value in values.items() if key != "vllm_xargs"}
    inner = values["vllm_xargs"] or {}
    if not isinstance(inner, dict):
        raise RequestError(f"vllm_xargs: expected an object of parameters, got {shown(inner)}")
    if twice := rest.keys() & inner.keys():
        raise RequestError(f"vllm_xargs: {shown(min(twice))} is beside it, too; give it once")
    return {**rest, **inner}
