"""Boxes and points that a grounding model writes in a fixed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sglang_lp.caches import shared_by_copies
from sglang_lp.params import Parameters, TokenId
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

#: Coordinates of a point and of a bounding box.
_POINT, _BOX = 2, 4
#: Most different coordinates; LocateAnything has 1,001. No limit on lists counts them, as two ids
#: name them all.
_MAX_COORDINATES = 1_024


class _BoxTokens(NamedTuple):
    """The tokens that may come in a box, by place."""

    coordinates: tuple[int, ...]
    coordinates_or_none: tuple[int, ...]
    coordinates_or_end: tuple[int, ...]


@shared_by_copies
def _lists(first: int, last: int, none: int, end: int) -> _BoxTokens:
    """Return the lists of all requests with these ids."""
    coordinates = tuple(range(first, last + 1))
    others = (() if first <= other <= last else (other,) for other in (none, end))
    return _BoxTokens(coordinates, *(coordinates + other for other in others))


class _Box:
    """The generated part of the newest box."""

    __slots__ = ("coordinates", "is_open", "says_none")

    def __init__(self) -> None:
        self.is_open = False
        self.coordinates = 0
        self.says_none = False


class LocateAnythingBoxGrammarLogitProcessor(LogitProcessor):
    """Let the model write a ``<box>`` only as ``none``, as a point or as a bounding box.

    A box holds the token for none, two coordinates or four coordinates, and then ends. Outside of a
    box nothing is edited. Only boxes that the answer opens count.

    It has the same effect as SGLang 0.5.23's class of this name
    (``sglang.srt.models.locate_anything``), with one exception: missing ids are refused, where
    SGLang silently does nothing.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {
        "box_start_token_id": 151668,
        "box_end_token_id": 151669,
        "coord_start_token_id": 151677,
        "coord_end_token_id": 152677,
        "none_token_id": 4064,
    }

    class Params(Parameters, frozen=True):
        """The parameters of a request; the names are those of the model's configuration.

        Attributes:
            box_start_token_id: Opens a box.
            box_end_token_id: Closes a box.
            coord_start_token_id: The first of the coordinates, whose ids follow one another.
            coord_end_token_id: The last of the coordinates, of at most 1,024.
            none_token_id: The content of a box without a place.
        """

        box_start_token_id: TokenId
        box_end_token_id: TokenId
        coord_start_token_id: TokenId
        coord_end_token_id: TokenId
        none_token_id: TokenId

        def __post_init__(self) -> None:
            """Refuse an empty range of coordinates, and too many."""
            count = self.coord_end_token_id - self.coord_start_token_id + 1
            if not 1 <= count <= _MAX_COORDINATES:
                raise ValueError(
                    f"coord_end_token_id: expected 1 to {_MAX_COORDINATES} coordinates from "
                    f"coord_start_token_id on, which is {self.coord_start_token_id}, got "
                    f"{self.coord_end_token_id}"
                )

        @property
        def lists(self) -> _BoxTokens:
            """The tokens that may come in a box."""
            return _lists(
                self.coord_start_token_id,
                self.coord_end_token_id,
                self.none_token_id,
                self.box_end_token_id,
            )

    class Fitted(Params, frozen=True):
        """The parameters with lists of tokens that are converted once."""

        allowed: _BoxTokens

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:  # noqa: ARG003 - they are ids
        """List the tokens that may come in a box now, while no step waits."""
        own = {name: getattr(params, name) for name in params.__struct_fields__}
        return cls.Fitted(**own, allowed=params.lists)

    def start(self, request: Request) -> _Box:  # noqa: ARG002 - the prompt does not count
        """Begin outside of a box."""
        return _Box()

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the newest box."""
        body, params = request.state, request.params
        for token_id in token_ids:
            if token_id == params.box_start_token_id:
                body.is_open, body.coordinates, body.says_none = True, 0, False
            elif body.is_open:
                body.is_open = token_id != params.box_end_token_id
                first, last = params.coord_start_token_id, params.coord_end_token_id
                body.coordinates += first <= token_id <= last
                body.says_none = body.says_none or token_id == params.none_token_id

    def fork(self, request: Request) -> _Box:
        """Copy the state of the box."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Allow the tokens that can continue the box."""
        body, params = request.state, request.params
        if not body.is_open:
            return
        if body.says_none or body.coordinates >= _BOX:
            edits.allow_only((params.box_end_token_id,))
        elif body.coordinates == _POINT:
            edits.allow_only(params.allowed.coordinates_or_end)
        elif body.coordinates:
            edits.allow_only(params.allowed.coordinates)
        else:
            edits.allow_only(params.allowed.coordinates_or_none)
