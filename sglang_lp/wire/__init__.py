"""SGLang's payload text and the pickles in it, written and read without unpickling anything.

A payload is ``{"callable": "<hex>"}``, the hex being of ``dill.dumps(cls)``. A class of an
importable module pickles *by reference*: its module, its name and nothing else, so there is one
byte string for each pickle protocol, and it can be written from the two names alone. Whatever is
not exactly such a byte string is code, or would become code once unpickled.

A *whole* text also holds the parameters, for ways on which ``custom_params`` get lost:
``{"processor": "<payload or name>", "params": {...}}``.
"""

from __future__ import annotations

import re
from _compat_pickle import (
    IMPORT_MAPPING,
    NAME_MAPPING,
    REVERSE_IMPORT_MAPPING,
    REVERSE_NAME_MAPPING,
)
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from sglang_lp.errors import PayloadRefused, RefusalReason, shown

__all__ = [
    "CANONICAL_PROTOCOL",
    "ENTRY",
    "MAX_WHOLE",
    "PROTOCOLS",
    "Description",
    "Kind",
    "decode",
    "describe",
    "digest",
    "encode",
    "fold",
    "opcodes",
    "payload_for",
    "reference_pickle",
    "references",
    "spellings",
    "unfold",
]

#: What dill writes unless told otherwise, on every Python up to 3.13.
CANONICAL_PROTOCOL = 4

#: Pickle protocols that exist.
PROTOCOLS = range(6)

#: The entry of a request's ``metadata`` that may hold a payload, a name or a whole text.
ENTRY = "sglang_lp"

#: Longest whole text that is read, in characters: room for the longest list of token ids.
MAX_WHOLE = 1 << 20

#: The first protocol that keeps Python 3's own module names, and the first with frames.
_OWN_NAMES = 3
_FRAMED = 4

#: Keys exact, no other key, no escapes, lower-case hex; JSON's white space and no other.
_PAYLOAD = re.compile(r'{s}\{{{s}"callable"{s}:{s}"([0-9a-f]*+)"{s}\}}{s}'.format(s=r"[ \t\n\r]*+"))


def reference_pickle(module: str, name: str, protocol: int = CANONICAL_PROTOCOL) -> bytes:
    """Return the pickle of a class by reference, byte for byte as ``dill.dumps`` writes it.

    Args:
        module: The class's ``__module__``.
        name: Its ``__qualname__``, without dots: a nested class has no fixed pickle.
        protocol: Pickle protocol, 0 to 5.

    Raises:
        ValueError: Not such names, or names outside ASCII with a protocol below 3.
    """
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(
            f"expected the names of a module and of a class in it, "
            f"got {shown(module)} and {shown(name)}"
        )
    if protocol not in PROTOCOLS:
        raise ValueError(f"expected a pickle protocol from 0 to 5, got {protocol}")
    # Python mostly keeps one string for both names if they are equal; pickle then refers back.
    return _written(module, name, protocol, refer_back=name == module)


def _written(module: str, name: str, protocol: int, *, refer_back: bool) -> bytes:
    if protocol >= _FRAMED:
        body = _string(module) + (b"h\x00" if refer_back else _string(name)) + b"\x93\x94."
        return b"\x80%c\x95%b%b" % (protocol, len(body).to_bytes(8, "little"), body)
    if protocol < _OWN_NAMES:
        module, name = _python2_names(module, name)
    head = b"" if protocol < 2 else b"\x80%c" % protocol  # noqa: PLR2004 - PROTO came with 2
    encoding = "ascii" if protocol < _OWN_NAMES else "utf-8"
    put = b"q\x00" if protocol else b"p0\n"
    return b"%bc%b\n%b\n%b." % (head, module.encode(encoding), name.encode(encoding), put)


def _python2_names(module: str, name: str) -> tuple[str, str]:
    """Return the names that old protocols use for what Python 3 renamed in its library."""
    module, name = REVERSE_NAME_MAPPING.get((module, name), (module, name))
    return REVERSE_IMPORT_MAPPING.get(module, module), name


def _fits_protocol(module: str, name: str, protocol: int) -> bool:
    """Tell whether unpickling a reference with this protocol gives back these names."""
    if protocol >= _OWN_NAMES:
        return True
    old = _python2_names(module, name)
    back = NAME_MAPPING.get(old) or (IMPORT_MAPPING.get(old[0], old[0]), old[1])
    return back == (module, name) and (module + name).isascii()


def _string(text: str) -> bytes:
    raw = text.encode()
    head = b"\x8c%c" % len(raw) if len(raw) < 1 << 8 else b"X" + len(raw).to_bytes(4, "little")
    return head + raw + b"\x94"


def references(module: str, name: str) -> Iterator[bytes]:
    """Yield every pickle by reference of a class, over all protocols that keep its names.

    Args:
        module: The class's ``__module__``.
        name: Its ``__qualname__``, without dots.

    Raises:
        ValueError: As :func:`reference_pickle`.
    """
    for protocol in PROTOCOLS:
        if _fits_protocol(module, name, protocol):
            yield reference_pickle(module, name, protocol)
            if protocol >= _FRAMED and name == module:  # two equal strings, not one
                yield _written(module, name, protocol, refer_back=False)


def encode(pickled: bytes) -> str:
    """Return the payload text of a pickle, exactly as SGLang's ``to_str`` writes it."""
    return f'{{"callable": "{pickled.hex()}"}}'


def spellings(pickled: bytes) -> tuple[str, str]:
    """Return the payload text as ``json.dumps`` writes it and as compact JSON writers do."""
    return encode(pickled), f'{{"callable":"{pickled.hex()}"}}'


@lru_cache(maxsize=256)
def payload_for(module: str, name: str) -> str:
    """Return what SGLang's ``to_str`` returns for a class, from its names alone.

    Args:
        module: The class's ``__module__``.
        name: Its ``__qualname__``, without dots.

    Raises:
        ValueError: As :func:`reference_pickle`.
    """
    return encode(reference_pickle(module, name))


def digest(pickled: bytes) -> str:
    """Return the SHA-256 of a pickle in hex: what a policy pins and the audit log shows.

    It is of the decoded bytes, so that no way of spelling the JSON around them changes it.
    """
    import hashlib  # not at the top: the client never needs it, and it costs a millisecond

    return hashlib.sha256(pickled).hexdigest()


def decode(payload: str, max_chars: int) -> bytes:
    """Return the pickle in a payload text, without looking into it.

    Args:
        payload: The text. Anything but a plain ``str`` is refused.
        max_chars: Longest text that is read at all.

    Raises:
        PayloadRefused: ``NOT_TEXT``, ``TOO_LARGE`` or ``MALFORMED``.
    """
    if type(payload) is not str:
        raise PayloadRefused(
            f"custom_logit_processor: expected text, got {_json_name(payload)}",
            reason=RefusalReason.NOT_TEXT,
        )
    size = len(payload)
    if size > max_chars:
        raise PayloadRefused(
            f"custom_logit_processor: expected at most {max_chars} characters, got {size}; "
            "a class of an importable module takes far less, and code is accepted only if the "
            "operator pinned it",
            reason=RefusalReason.TOO_LARGE,
            size=size,
        )
    match = _PAYLOAD.fullmatch(payload)
    if match is None or len(match[1]) % 2:
        raise PayloadRefused(
            'custom_logit_processor: expected {"callable": "<lower-case hex>"} with that key and '
            f"no other, got {size} characters of something else; "
            "send what the processor's to_str() returns, unchanged",
            reason=RefusalReason.MALFORMED,
            size=size,
        )
    return bytes.fromhex(match[1])


def fold(payload: str, params: dict[str, Any]) -> str:
    """Return the whole text of a processor and its parameters.

    Args:
        payload: A payload text, or the name of a class or profile that the server knows.
        params: JSON values.
    """
    return orjson.dumps({"processor": payload, "params": params}).decode()


def unfold(text: Any) -> tuple[Any, dict[str, Any] | None]:
    """Take a whole text apart; leave anything else to who reads payloads.

    Args:
        text: Whatever a request has where a payload is expected.

    Returns:
        The payload, still to be checked, and its parameters; ``None`` if it brings none.

    Raises:
        PayloadRefused: ``TOO_LARGE`` or ``MALFORMED``.
    """
    if type(text) is not str or '"processor"' not in text:
        return text, None
    size = len(text)
    if size > MAX_WHOLE:
        raise PayloadRefused(
            f"custom_logit_processor: expected at most {MAX_WHOLE} characters of processor and "
            f"parameters together, got {size}",
            reason=RefusalReason.TOO_LARGE,
            size=size,
        )
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError:
        whole = None
    if type(whole) is dict and whole.keys() == {"processor", "params"}:
        payload, params = whole["processor"], whole["params"]
        if type(payload) is str and type(params) is dict:
            return payload, params
    raise PayloadRefused(
        'custom_logit_processor: expected {"processor": "<payload or name>", "params": {...}} with '
        f"these two keys and no other, got {size} characters of something else; "
        "a processor without parameters is sent as its payload or name alone",
        reason=RefusalReason.MALFORMED,
        size=size,
    )


def _json_name(value: object) -> str:
    # By identity of the type: nothing that the object defines is asked.
    names = ((dict, "an object"), (list, "a list"), (type(None), "null"), (bool, "a truth value"))
    numbers = ((int, "a number"), (float, "a number"), (bytes, "bytes"))
    return next((name for kind, name in names + numbers if type(value) is kind), "another type")


class Kind(StrEnum):
    """What a pickle appears to be."""

    REFERENCE = "a class by reference"
    INSTANCE = "an instance, not a class"
    BY_VALUE = "code: a class by value"
    OTHER = "something other than a class by reference"


class Description(NamedTuple):
    """What a pickle appears to be. It explains; nothing is ever allowed because of it.

    Attributes:
        kind: ``REFERENCE`` is exact, the rest is what it looks like.
        module: Module of the class that is referred to, else empty. Client data.
        name: Name of that class, else empty. Client data.
    """

    kind: Kind
    module: str = ""
    name: str = ""


#: The two ways to write a reference, followed by whatever else there is; for a message only, so
#: not compiled before there is one.
_REFERENCE = (
    rb"(?:\x80[\x02-\x05])?(?:\x95.{8})?"
    rb"(?:c([A-Za-z_][\w.]*+)\n([A-Za-z_]\w*+)\n(?:p0\n|q\x00)?"
    rb"|\x8c.([A-Za-z_][\w.]*+)\x94(?:\x8c.([A-Za-z_]\w*+)\x94|h\x00)\x93\x94?)"
)
_PROTO = 0x80
#: ``EMPTY_TUPLE NEWOBJ``: the class that went before is instantiated.
_NEW_INSTANCE = b")\x81"


def describe(pickled: bytes) -> Description:
    """Tell what a pickle appears to be, from its first bytes, for a message.

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
    if _written(module, name, protocol, refer_back=len(names) == 1) == pickled:
        return Description(Kind.REFERENCE, module, name)
    return Description(Kind.OTHER)


def opcodes(pickled: bytes, limit: int = 200) -> list[str]:
    """List the opcodes of a pickle for a person to read; nothing is executed.

    Args:
        pickled: Any bytes.
        limit: Most opcodes listed.

    Returns:
        One line for each opcode with its argument, shortened and escaped. Ends with a line that
        says so if the stream is broken, goes on after ``STOP``, or is longer than ``limit``.
        Never raises.
    """
    import pickletools  # not at the top, as above

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
