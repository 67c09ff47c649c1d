"""Bodies of ``/vertex_generate``: their ``parameters`` and instances are a body of ``/generate``.

SGLang makes its request of them without the schema of ``/generate``, and shows that schema the
whole body instead. So wrong types would reach the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_lp.errors import RequestError
from sglang_lp.server.front.native_types import check_types
from sglang_lp.server.front.places import PARAMS, PROCESSOR, check_generate, named

_PARAMETERS, _SAMPLING = "parameters", "sampling_params"
#: Fields that SGLang reads in an instance; of the first three, the first that instance 0 has.
_PROMPTS = "text", "input_ids", "input_embeds"
_IMAGES = "image_data"
_RIGHT = {
    PROCESSOR: f"{_PARAMETERS}.{PROCESSOR}",
    PARAMS: f"{_PARAMETERS}.{_SAMPLING}.{PARAMS}",
}


def check_vertex(body: Any) -> None:
    """Check a body of ``/vertex_generate``.

    Raises:
        RequestError: A field is misspelled, in the wrong place or of another type than on
            ``/generate``. The message says what is right.
    """
    if not isinstance(body, Mapping):
        return  # SGLang refuses it
    instances, parameters = body.get("instances"), body.get(_PARAMETERS)
    _check_place(body, "the top of the body")
    if not isinstance(instances, list) or not all(isinstance(one, Mapping) for one in instances):
        return
    for number, instance in enumerate(instances):
        where = f"instances[{number}]"
        _check_place(instance, where)
        _check_place(instance.get(_SAMPLING), where)
    check_generate(parameters)
    if instances and isinstance(parameters, Mapping | None):
        check_types(_as_generate(instances, parameters or {}))


def _check_place(place: Any, where: str) -> None:
    for name, meant in named(place):
        raise RequestError(
            f"{name}: expected {_RIGHT[meant]} on this endpoint, got it in {where}; move it there "
            "(a list has one for each instance)"
        )


def _as_generate(
    instances: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of ``/generate`` that SGLang makes its request of.

    Raises:
        RequestError: ``parameters`` have what belongs into instances, or an unknown field.
    """
    for name in (*_PROMPTS, _IMAGES):
        if name in parameters:
            raise RequestError(
                f"{_PARAMETERS}.{name}: expected in instances on this endpoint; move it there"
            )
    given: dict[str, Any] = {}
    for name in _PROMPTS:
        if instances[0].get(name):
            given[name] = [instance.get(name) for instance in instances]
            break
    images = [one[_IMAGES] for one in instances if one.get(_IMAGES) is not None]
    if images:
        given[_IMAGES] = images
    return {**parameters, **given}
