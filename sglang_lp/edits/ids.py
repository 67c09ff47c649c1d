"""Lists of token ids for the batch: checked and converted once, not at every step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from sglang_lp.caches import shared_by_copies
from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch

__all__ = [
    "LONG",
    "Ids",
    "check_id",
    "checked",
    "converted_ids",
    "identity",
    "ids_of",
    "lasting",
    "merged",
    "once",
    "tensor_of",
]

#: Lists of this length and longer are kept as tensors.
LONG = 64


class Ids:
    """A long list of token ids that never changes; never empty.

    Attributes:
        tensor: The ids, shape ``(len,)``, int64, on the CPU.
        smallest: The smallest id.
        largest: The largest id.
        source: The tuple that was converted, or ``None``.
        is_lasting: Whether the same object is used at other steps.
    """

    __slots__ = ("__weakref__", "_length", "is_lasting", "largest", "smallest", "source", "tensor")

    def __init__(
        self,
        token_ids: Sequence[int],
        source: tuple[int, ...] | None = None,
        *,
        is_lasting: bool = False,
    ) -> None:
        import torch

        owns = is_lasting and isinstance(token_ids, array) and token_ids.typecode == "q"
        owned = token_ids if owns else array("q", token_ids)
        self.tensor: torch.Tensor = torch.frombuffer(owned, dtype=torch.int64)
        self._length = len(token_ids)
        smallest, largest = self.tensor.aminmax()
        self.smallest, self.largest = int(smallest), int(largest)
        self.source = source
        self.is_lasting = is_lasting or source is not None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self.tensor.tolist())

    def __contains__(self, token_id: object) -> bool:
        # Torch takes longer, and a chain asks for each of its pools (`make bench PART=bounds`).
        return bool((self.tensor.numpy() == token_id).any())


#: Types of parameters that hold no ids.
_PLAIN = frozenset({bool, float, int, str, type(None)})

#: By the identity of the source tuple, which each list keeps alive.
_known: WeakValueDictionary[int, Ids] = WeakValueDictionary()


#: Parameters whose lists were converted last, and the lists.
_latest: tuple[object, list[Ids]] = None, []


def converted_ids(params: Any) -> list[Ids]:
    """Convert every long list of ids in parameters; :func:`ids_of` finds them while they live.

    Args:
        params: Parsed parameters, or ``None``.
    """
    global _latest  # noqa: PLW0603 - of the process
    if params is not _latest[0]:
        _latest = params, _converted(params)
    return _latest[1]


def _converted(value: Any) -> list[Ids]:
    """Convert the lists in parameters or in a part of them, such as a link of a chain."""
    if fields := getattr(value, "__struct_fields__", ()):
        parts = [getattr(value, name) for name in fields]
        # Few are lists or structs, and a request waits for this.
        return [ids for part in parts if type(part) not in _PLAIN for ids in _converted(part)]
    if not isinstance(value, tuple) or not value:
        return []
    if not isinstance(value[0], int):
        return [ids for item in value for ids in _converted(item)]
    if len(value) < LONG:
        return []
    found = _known.get(id(value))
    if found is None:
        found = _known[id(value)] = Ids(value, value)
    return [found]


def ids_of(token_ids: Iterable[int]) -> Ids | list[int]:
    """Return a copy of a list of ids, or the object that :func:`converted_ids` made of it.

    Raises:
        TypeError: An entry is no integer.
    """
    if type(token_ids) is tuple:  # parameters, the most frequent case
        found = _known.get(id(token_ids)) if len(token_ids) >= LONG else None
        if found is not None:
            return found
    elif isinstance(token_ids, Ids):
        return token_ids
    elif isinstance(token_ids, array) and token_ids.typecode == "q":
        return token_ids.tolist() if len(token_ids) < LONG else Ids(token_ids)
    # index() takes no float and no string, so that nothing odd reaches the batch's index tensor.
    ids = [*map(index, token_ids)]
    return ids if len(ids) < LONG else Ids(ids)


def checked(token_ids: Iterable[int], vocab_size: int) -> Ids | list[int]:
    """Return :func:`ids_of`, checked against the vocabulary.

    Without the check a row could read or write its neighbour.

    Raises:
        ProcessorFault: An id is outside the vocabulary.
    """
    ids = ids_of(token_ids)
    if isinstance(ids, Ids):
        smallest, largest = ids.smallest, ids.largest
    elif ids:
        smallest, largest = min(ids), max(ids)
    else:
        return ids
    if smallest < 0 or largest >= vocab_size:
        check_id(next(i for i in ids if not 0 <= i < vocab_size), vocab_size)
    return ids


def check_id(token_id: int, vocab_size: int) -> int:
    """Return a token id as a number, checked against the vocabulary.

    Raises:
        ProcessorFault: The id is outside the vocabulary.
    """
    token_id = index(token_id)
    if not 0 <= token_id < vocab_size:
        raise ProcessorFault(
            f"token id {token_id} is outside the vocabulary of {vocab_size} tokens"
        )
    return token_id


def lasting(token_ids: Sequence[int]) -> Ids | list[int]:
    """Convert a list of ids that a processor keeps and uses at many steps.

    Pass the result to :class:`~sglang_lp.edits.Edits` at each step: a long list is then checked
    and converted once. Lists in parameters need no conversion.

    Args:
        token_ids: At least one id. An ``array("q")`` is not copied, so never change it.

    Returns:
        A collection of the ids in their order.
    """
    return [*token_ids] if len(token_ids) < LONG else Ids(token_ids, is_lasting=True)


def tensor_of(ids: Ids | Sequence[int] | torch.Tensor) -> torch.Tensor:
    """Return ids as a tensor on the CPU."""
    import torch

    if isinstance(ids, torch.Tensor):
        return ids
    return ids.tensor if isinstance(ids, Ids) else torch.tensor(ids, dtype=torch.int64)


def identity(ids: Ids | list[int]) -> object:
    """Return a cache key: the same one for the very same long list, or for equal short ones."""
    return ids if isinstance(ids, Ids) else tuple(ids)


@shared_by_copies
def merged(lists: tuple[Ids, ...]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the sorted ids of several lists without duplicates, and the place of each id.

    Returns:
        The ids; and for each id of the lists, in order, its index among them. ``None`` in place of
        the indices if the lists are one list in ascending order, which is returned as it is.
    """
    import torch

    ids = lists[0].tensor if len(lists) == 1 else torch.cat([ids.tensor for ids in lists])
    if bool((ids[1:] > ids[:-1]).all()):
        return ids, None
    ids, places = torch.unique(ids, return_inverse=True)
    return ids, places


def once(ids: Ids | list[int]) -> torch.Tensor:
    """Return the ids of a list without duplicates."""
    import torch

    if isinstance(ids, Ids) and ids.is_lasting:
        return merged((ids,))[0]
    found: torch.Tensor = torch.unique(tensor_of(ids))
    return found
