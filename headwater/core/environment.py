"""The environment of this process: out of sight of others."""

from __future__ import annotations

import ctypes
import os
import sys


def hide_environment() -> None:
    """Remove Headwater's variables from the memory that others read as /proc/PID/environ; `os.environ` keeps them.

    Processes that this one starts have them only where it hands them on. Without effect except on Linux.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    for name in os.environ:
        if name.startswith("HEADWATER_"):
            if (at := libc.getenv(name.encode())) is not None:
                ctypes.memset(at, 0, len(os.fsencode(os.environ[name])))
            libc.unsetenv(name.encode())
