"""The base of adapters for vLLM's classes: parameters, and an object made for the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.adapters.adapted import AdaptedProcessor
from sglang_lp.adapters.arguments import refused
from sglang_lp.adapters.vllm_config import make_config, make_params
from sglang_lp.adapters.vllm_names import name, vllm_names
from sglang_lp.adapters.vllm_xargs import merge_xargs
from sglang_lp.errors import PolicyError, shown

if TYPE_CHECKING:
    from sglang_lp.adapters.engine_settings import EngineSettings
    from sglang_lp.params import Parameters
    from sglang_lp.served_model import ServedModel


class VllmProcessor(AdaptedProcessor):
    """A class of vLLM that is made once for the engine and reads ``SamplingParams``.

    Attributes:
        module: The module of vLLM with the interface's ``LogitsProcessor``.
    """

    module: ClassVar[str]

    @classmethod
    def detects(cls, found: Any) -> bool:
        try:
            base = name(cls.module, "LogitsProcessor")
        except (ImportError, AttributeError):  # an installed vLLM without that interface
            return False
        return isinstance(found, type) and base in found.__mro__[1:]

    @classmethod
    def check_class(cls, found: Any, where: str) -> None:
        if not cls.detects(found):
            raise PolicyError(f"{where}: expected a subclass of {cls.module}.LogitsProcessor")

    @classmethod
    def unwrapped(cls, values: dict[str, Any]) -> dict[str, Any]:
        return merge_xargs(values)

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
            with vllm_names():
                cls.foreign.validate_params(make_params(params.values, None))
        except (Exception, SystemExit) as error:
            raise refused(cls.title, error) from error
        return params  # type: ignore[no-any-return]

    @classmethod
    def make_engine_object(cls, engine: EngineSettings, *states: Any) -> Any:
        """Make the object of the engine.

        Args:
            engine: The settings of the server.
            states: The constructor's arguments after the settings.

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
