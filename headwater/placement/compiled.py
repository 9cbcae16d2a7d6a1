"""Loops over many hosts run as machine code where numba is there, else as Python; the code is one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_known: set[Callable[..., Any]] = set()
"""Parts that numba knows of."""


def compiled(function: Callable[_P, _R], parts: Iterable[Callable[..., Any]] = ()) -> Callable[_P, _R]:
    """Compile a function at its first call; what it compiled to is kept on disk for other processes.

    ``parts``: the functions of ours that it calls.
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
