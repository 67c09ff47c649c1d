"""The text of a payload, the pickle in it, and the pickle of a class by reference.

A payload is ``{"callable": "<hex>"}``, the hex of ``dill.dumps(cls)``. A class of an importable
module pickles *by reference*: its module and its name, nothing else. So each pickle protocol has
one byte string for it, which can be written from the two names. Every other byte string is code,
or would become code if it were unpickled. Nothing here unpickles or imports.
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
from functools import lru_cache

from sglang_lp.errors import PayloadRefused, RefusalReason, shown

__all__ = [
    "CANONICAL_PROTOCOL",
    "PROTOCOLS",
    "decode",
    "digest",
    "encode",
    "payload_for",
    "reference_pickle",
    "references",
    "spellings",
    "write_reference",
]

#: What dill writes unless told otherwise, on every Python up to 3.13.
CANONICAL_PROTOCOL = 4

#: Pickle protocols that exist.
PROTOCOLS = range(6)

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
        ValueError: They are not such names, or names outside ASCII with a protocol below 3.
    """
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(
            f"expected the names of a module and of a class in it, "
            f"got {shown(module)} and {shown(name)}"
        )
    if protocol not in PROTOCOLS:
        raise ValueError(f"expected a pickle protocol from 0 to 5, got {protocol}")
    # Python mostly keeps one string for both names if they are equal; pickle then refers back.
    return write_reference(module, name, protocol, refer_back=name == module)


def write_reference(module: str, name: str, protocol: int, *, refer_back: bool) -> bytes:
    """Return a pickle by reference of two names, whatever they are.

    Args:
        module: The class's ``__module__``.
        name: Its ``__qualname__``.
        protocol: Pickle protocol, 0 to 5.
        refer_back: Whether the name is a reference to the module's string, as pickle writes two
            names that are one object. Protocols 4 and 5 only.
    """
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
    """Return the names of Python 2, which old protocols use for renamed modules and classes."""
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
                yield write_reference(module, name, protocol, refer_back=False)


def encode(pickled: bytes) -> str:
    """Return the payload text of a pickle, exactly as SGLang's ``to_str`` writes it."""
    return f'{{"callable": "{pickled.hex()}"}}'


def spellings(pickled: bytes) -> tuple[str, str]:
    """Return a pickle's payload in the two usual spellings: of ``json.dumps``, and compact."""
    return encode(pickled), f'{{"callable":"{pickled.hex()}"}}'


@lru_cache(maxsize=256)
def payload_for(module: str, name: str) -> str:
    """Return the payload of a class, as SGLang's ``to_str`` writes it, from its names.

    Args:
        module: The class's ``__module__``.
        name: Its ``__qualname__``, without dots.

    Raises:
        ValueError: As :func:`reference_pickle`.
    """
    return encode(reference_pickle(module, name))


def digest(pickled: bytes) -> str:
    """Return the SHA-256 of a pickle in hex, as a policy pins it and the audit log shows it.

    The spelling of the JSON around the pickle does not change it.
    """
    import hashlib  # not at the top, because clients never need it

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


def _json_name(value: object) -> str:
    # By identity of the type: no code of the object's own class runs.
    names = ((dict, "an object"), (list, "a list"), (type(None), "null"), (bool, "a truth value"))
    numbers = ((int, "a number"), (float, "a number"), (bytes, "bytes"))
    return next((name for kind, name in names + numbers if type(value) is kind), "another type")
