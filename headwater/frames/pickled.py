"""Python functions of a job: PySpark pickles them, and Headwater's own functions call them."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from headwater.core.text import cut


def unpickled(command: bytes) -> Any:
    """Return the object of a command, which PySpark has pickled in this very process a moment ago."""
    return pickle.loads(command)


def calling(functions: Sequence[Callable[..., Any]], caller: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Return ``caller`` with its first arguments, under the names of the job's functions that it calls."""
    found: Any = functools.partial(caller, *arguments)
    found.__qualname__ = cut(", ".join(getattr(f, "__name__", "function") for f in functions), 100)
    return found  # type: ignore[no-any-return]
