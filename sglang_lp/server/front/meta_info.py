"""The report of an answer on its way to the client."""

from __future__ import annotations

from typing import Any

from sglang_lp.client.answers import KEY

__all__ = ["unwrap"]


def unwrap(
    _result: None,
    _manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, list[Any]],
    index: int,
    *_args: Any,
    **_kwargs: Any,
) -> None:
    """Keep the report itself: after ``TokenizerManager.update_request_meta_info``.

    SGLang makes a list with an entry for each token of it, and one of ``None`` for the other
    requests of the same message.
    """
    if KEY not in customized_info:
        return
    meta_info.pop(KEY, None)
    state.customized_info_accumulated.pop(KEY, None)
    state.customized_info_reported_keys.discard(KEY)
    values = customized_info[KEY][index]
    if values and values[-1] is not None:
        meta_info[KEY] = values[-1]
