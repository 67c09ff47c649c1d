"""Runs a command in a new network namespace, once its loopback interface is up.

``unshare --map-root-user --net python -m scripts.alone COMMAND...``
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

__all__ = ["main"]

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1


def main(command: list[str]) -> None:
    """Become the command."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, up.ljust(40, b"\0"))
    os.execvp(command[0], command)  # noqa: S606 - the caller asked for it


if __name__ == "__main__":
    main(sys.argv[1:])
