"""The explanation of a pickle, for a refusal's message or a person. No decision rests on it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from sglang_lp.errors import shown
from sglang_lp.wire.payload import write_reference

__all__ = ["Description", "Kind", "describe", "opcodes"]


class Kind(StrEnum):
    """The kind of object that a pickle appears to hold."""

    REFERENCE = "a class by reference"
    INSTANCE = "an instance, not a class"
    BY_VALUE = "code: a class by value"
    OTHER = "something other than a class by reference"


class Description(NamedTuple):
    """A pickle, explained. Nothing is ever allowed because of it.

    Attributes:
        kind: The kind of object. ``REFERENCE`` is exact, the others are guesses.
        module: Module of the class that is referred to, else empty. Client data.
        name: Name of that class, else empty. Client data.
    """

    kind: Kind
    module: str = ""
    name: str = ""


#: The two ways to write a reference, followed by anything. Compiled at the first message.
_REFERENCE = (
    rb"(?:\x80[\x02-\x05])?(?:\x95.{8})?"
    rb"(?:c([A-Za-z_][\w.]*+)\n([A-Za-z_]\w*+)\n(?:p0\n|q\x00)?"
    rb"|\x8c.([A-Za-z_][\w.]*+)\x94(?:\x8c.([A-Za-z_]\w*+)\x94|h\x00)\x93\x94?)"
)
_PROTO = 0x80
#: ``EMPTY_TUPLE NEWOBJ``: instantiates the class before it.
_NEW_INSTANCE = b")\x81"


def describe(pickled: bytes) -> Description:
    """Explain a pickle by its first bytes.

    Args:
        pickled: Any bytes. A reference to names outside ASCII is not recognised as one.

    Returns:
        The description. Never raises.
    """
    head = pickled[:1024]
    if (b"dill._dill" in head and b"_create_type" in head) or b"cloudpickle" in head:
        return Description(Kind.BY_VALUE)
    match = re.match(_REFERENCE, head, re.DOTALL)
    if match is None:
        return Description(Kind.OTHER)
    names = [group.decode("ascii") for group in match.groups() if group is not None]
    module, name = names[0], names[-1]
    if head.startswith(_NEW_INSTANCE, match.end()) or name == "_reconstructor":
        return Description(Kind.INSTANCE)
    protocol = pickled[1] if pickled[0] == _PROTO else int(pickled.endswith(b"q\x00."))
    if write_reference(module, name, protocol, refer_back=len(names) == 1) == pickled:
        return Description(Kind.REFERENCE, module, name)
    return Description(Kind.OTHER)


def opcodes(pickled: bytes, limit: int = 200) -> list[str]:
    """List the opcodes of a pickle for a person to read; nothing is executed.

    Args:
        pickled: Any bytes.
        limit: Most opcodes listed.

    Returns:
        One line for each opcode with its argument, shortened and escaped. A last line says that
        the stream is broken, goes on after ``STOP``, or has more than ``limit`` opcodes. Never
        raises.
    """
    import pickletools  # not at the top, because a server never needs it

    lines: list[str] = []
    try:
        for opcode, argument, position in pickletools.genops(pickled):
            if len(lines) == limit:
                return [*lines, "... and more"]
            text = shown(argument) if argument is not None else ""
            stop = position or 0
            lines.append(f"{stop:5} {opcode.name} {text}".rstrip())
    except Exception as error:  # noqa: BLE001 - pickletools raises many kinds on hostile bytes
        return [*lines, f"broken after this: {type(error).__name__}"]
    if more := len(pickled) - stop - 1:
        lines.append(f"{more} byte(s) follow STOP")
    return lines
