"""Numbers that JSON does not have. Pure."""

from __future__ import annotations

_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_number(value: float) -> float | str:
    """Return a number as Spark reads it from JSON.

    >>> json_number(1.5), json_number(float("-inf"))
    (1.5, '-Infinity')
    """
    return value if value - value == 0 else _NO_NUMBERS[str(value)]
