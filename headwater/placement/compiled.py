"""Loops over many hosts: machine code if numba is installed, else the same code in Python. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_known: set[Callable[..., Any]] = set()
"""Parts already compiled."""


def compiled(function: Callable[_P, _R], parts: Iterable[Callable[..., Any]] = ()) -> Callable[_P, _R]:
    """Compile a function at its first call; the result is cached on disk for other processes.

    ``parts``: our functions that it calls.
    """
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError:
        return function
    for part in parts:
        if part not in _known:
            _known.add(part)
            register_jitable(part)
    found: Callable[_P, _R] = numba.njit(cache=True)(function)
    return found
