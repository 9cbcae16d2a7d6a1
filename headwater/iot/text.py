"""Numbers as Spark SQL text."""

from __future__ import annotations

import math

from headwater.core.errors import DataflowError


def double_text(number: float) -> str:
    """Write a number as a double, exactly."""
    if not math.isfinite(number):
        raise DataflowError(f"{number} is not a finite number", where="iot", hint="use finite numbers")
    return f"{float(number)!r}D"
