"""Loops over many hosts run as machine code where numba is there, else as Python; the code is one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function at its first call; what it compiled to is kept on disk for other processes."""
    try:
        import numba
    except ImportError:
        return function
    found: Callable[_P, _R] = numba.njit(cache=True)(function)
    return found
