"""User names and passwords of outside systems: read where they are used, never stored or shown."""

from __future__ import annotations

import os

from headwater.core.errors import RuntimeFailure


def from_environment(name: str | None, *, where: str) -> str | None:
    """Read the environment variable ``name``; None without a name. Raise RuntimeFailure if it is not set."""
    if name is None:
        return None
    value = os.environ.get(name)
    if value is None:
        raise RuntimeFailure(
            f"the environment variable {name} is not set",
            where=where,
            hint=f"set {name} where the unit runs: values are read there and stored nowhere",
        )
    return value
