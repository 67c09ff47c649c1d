"""Check of prompts' token ids: an id that the served model does not have is refused.

SGLang does not check them, and a negative id ends its scheduler with every request in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sglang_lp.errors import RequestError, shown

#: Length from which on NumPy checks a list of ids.
_LONG = 256


def check_prompts(manager: Any, obj: Any) -> Iterator[None]:
    """Check the prompts of a body that gives them as token ids, and yield between two.

    Args:
        manager: SGLang's ``TokenizerManager``.
        obj: SGLang's ``GenerateReqInput`` or ``EmbeddingReqInput``, of one prompt or of a list.

    Raises:
        RequestError: As :func:`check_ids`.
    """
    prompts = getattr(obj, "input_ids", None)
    if not isinstance(prompts, list) or not prompts or _replaces_ids(manager, obj):
        return
    for prompt in prompts if isinstance(prompts[0], list) else [prompts]:
        if not isinstance(prompt, list):
            continue  # SGLang refuses it
        try:
            ids = array("q", prompt)
        except TypeError:
            continue  # SGLang refuses it
        except OverflowError:
            raise _outside("a number beyond 64 bits", manager) from None
        _check_range(manager, ids)
        yield


def check_ids(manager: Any, obj: Any, ids: Sequence[int] | None) -> None:
    """Check the token ids of one prompt.

    Args:
        manager: SGLang's ``TokenizerManager``.
        obj: The request. A request whose ids SGLang replaces is not checked.
        ids: Token ids of the prompt, or ``None``.

    Raises:
        RequestError: An id is negative, or ``vocab_size`` or more.
    """
    if ids and not _replaces_ids(manager, obj):
        _check_range(manager, ids)


def _check_range(manager: Any, ids: Sequence[int]) -> None:
    """Check token ids that SGLang does not replace, as :func:`check_ids` does.

    Adapters (LoRA) do not change the range: SGLang loads none that adds tokens.
    """
    if not ids:
        return
    if len(ids) < _LONG:
        smallest, largest = min(ids), max(ids)
    else:
        numbers = np.asarray(ids)
        smallest, largest = int(numbers.min()), int(numbers.max())
    if smallest < 0:
        raise _outside(shown(smallest), manager)
    if largest >= manager.model_config.vocab_size:
        raise _outside(shown(largest), manager)


def _replaces_ids(manager: Any, obj: Any) -> bool:
    """Tell whether SGLang replaces a request's ids, in time that grows with its texts.

    It replaces them with pad values for images, audio or video, or with ``input_embeds``. Overrides
    of single embeddings replace none: SGLang looks every id up before it writes them over.
    """
    if getattr(obj, "input_embeds", None) is not None:
        return True
    if getattr(manager, "mm_processor", True) is None:
        return False  # a text-only model: SGLang ignores images
    has_media = getattr(obj, "contains_mm_input", None)
    return has_media is not None and bool(has_media())


def _outside(came: str, manager: Any) -> RequestError:
    most = manager.model_config.vocab_size - 1
    return RequestError(
        f"input_ids: expected token ids of the served model, 0 to {most}, got {came}; these ids "
        "are probably another model's"
    )
