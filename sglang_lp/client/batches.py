"""A processor or ``None`` for each prompt of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from sglang_lp.client.attachment import Attachment, add_payload, copy_mapping
from sglang_lp.client.json_values import to_lists
from sglang_lp.errors import NotRun, RequestError, shown

__all__ = ["Attachments", "attach_each"]

#: List nesting of one prompt in each field of prompts: text, ids, embeddings.
_NESTING = {"prompt": 0, "text": 0, "input_ids": 1, "input_embeds": 2}


class Attachments(msgspec.Struct, frozen=True):
    """Attachments for a batch with one prompt per entry, made by :func:`attach_each`.

    The methods are the methods of :class:`Attachment`, with the same errors, except that prompts
    in arrays of NumPy or torch become lists. They also raise
    :class:`~sglang_lp.errors.RequestError` where SGLang takes no list of processors: ``n`` above
    1, a single prompt, another number of prompts.

    Attributes:
        each: The attachment of each prompt, or ``None``.
    """

    each: tuple[Attachment | None, ...]

    def engine_kwargs(
        self, sampling_params: Mapping[str, Any] | list[Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the keyword arguments for ``Engine.generate`` and ``Engine.async_generate``.

        Args:
            sampling_params: One dict for all prompts, or one for each.
            kwargs: Other arguments of the call, such as ``prompt``; returned with the rest.
        """
        return self.generate_body({**kwargs, "sampling_params": sampling_params})

    def generate_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON body for ``POST /generate`` of a batch.

        Args:
            body: The body without the processors. Its ``sampling_params`` are one object for all
                prompts, or one for each.
        """
        result = add_payload(body, [one.payload if one else None for one in self.each])
        for field, nesting in _NESTING.items():
            if result.get(field) is not None:
                result[field] = to_lists(result[field])
                self._check_prompts(field, result[field], nesting)
        given = result.get("sampling_params")
        if not isinstance(given, list | tuple):
            given = [given] * len(self.each)
        self._check_length("sampling_params", len(given))
        result["sampling_params"] = [
            _add_sampling_params(one, params) for one, params in zip(self.each, given, strict=True)
        ]
        return result

    def extra_body(self, extra: Mapping[str, Any] | None = None) -> NoReturn:  # noqa: ARG002
        """Raise: the OpenAI endpoints take one ``custom_params`` for all prompts of a request.

        Args:
            extra: Not used.

        Raises:
            RequestError: Always. Send one request for each prompt, or use ``/generate``.
        """
        raise RequestError(
            "attach_each: an OpenAI request has one custom_params for all its prompts; "
            "send one request for each prompt, with attach(), or use POST /generate"
        )

    def check(self, answers: Any) -> None:
        """Check that the processor of each prompt ran on this prompt's answer.

        Args:
            answers: The list that ``/generate`` or ``Engine`` returned. Of a stream, the last
                event of each prompt, in the order of the prompts. A header does not do: it names
                the processors of all prompts together.

        Raises:
            NotRun: A processor did not run on its prompt, or an answer names no processors.
        """
        if not isinstance(answers, list | tuple) or len(answers) != len(self.each):
            raise NotRun(
                f"expected a list of {len(self.each)} answers, one for each prompt, got "
                f"{shown(answers)}; give the parsed body, because the header names the processors "
                "of all prompts together"
            )
        for one, answer in zip(self.each, answers, strict=True):
            if one:
                one.check(answer)

    def _check_prompts(self, field: str, prompts: Any, nesting: int) -> None:
        depth, first = 0, prompts
        while isinstance(first, list | tuple):
            depth += 1
            first = first[0] if first else None
        if depth <= nesting:
            raise RequestError(
                f"attach_each: expected {len(self.each)} prompts in {field}, got a single one; "
                "use attach(), or put the prompt into a list"
            )
        self._check_length(field, len(prompts))

    def _check_length(self, field: str, length: int) -> None:
        if length != len(self.each):
            raise RequestError(
                f"attach_each: expected {len(self.each)} entries in {field}, one for each "
                f"attachment, got {length}"
            )


def attach_each(attachments: Iterable[Attachment | None], /) -> Attachments:
    """Choose a processor, or none, for each prompt of a batch.

    Args:
        attachments: Attachments or ``None``, in the order of the prompts.

    Raises:
        RequestError: ``attachments`` is no list or is empty, or an entry has another type.
    """
    if not isinstance(attachments, Iterable):
        raise RequestError(
            "attach_each: expected a list with an entry for each prompt, got "
            f"{shown(attachments)}; put it into a list"
        )
    each = (*attachments,)
    for one in each:
        if not isinstance(one, Attachment | None):
            raise RequestError(
                f"attach_each: expected attachments of attach(), or None, got {shown(one)}"
            )
    if not each:
        raise RequestError("attach_each: expected an entry for each prompt, got none")
    return Attachments(each)


def _add_sampling_params(attachment: Attachment | None, given: Any) -> dict[str, Any]:
    params = {} if given is None else copy_mapping(given, "sampling_params")
    if params.get("n") not in (None, 1):
        raise RequestError(
            f"attach_each: SGLang takes no list of processors with n above 1, got n = "
            f"{shown(params['n'])}; use attach() for one processor, or send a request per prompt"
        )
    return attachment.sampling_params(params) if attachment else params
