"""Tables as multisets of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    import pyarrow as pa

RELATIVE = 1e-9
"""Relative tolerance of floating-point values: sums depend on the order of their terms."""


class NotEquivalent(HeadwaterError):
    """A deployment's sink differs from the batch run's result."""


@dataclass(frozen=True)
class Difference:
    """Rows of the batch result that are missing, rows too many, and examples of both."""

    lost: int
    duplicated: int
    examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated)


def compare(expected: pa.Table, got: pa.Table) -> Difference:
    """Compare two tables as multisets of rows; floating-point values to a relative 1e-9."""
    if expected.column_names != got.column_names:
        raise NotEquivalent(
            f"columns differ: {expected.column_names} expected, {got.column_names} found",
            hint="compare the schemas",
        )
    wanted, found = Counter(map(_row, expected.to_pylist())), Counter(map(_row, got.to_pylist()))
    missing, extra = list((wanted - found).elements()), list((found - wanted).elements())
    missing, extra = _pair_off(missing, extra)
    examples = [f"missing {r}" for r in missing[:3]] + [f"too many {r}" for r in extra[:3]]
    return Difference(len(missing), len(extra), tuple(examples))


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(_value(v) for v in row.values())


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _value(v)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else 0.0 if value == 0 else value
    if hasattr(value, "tzinfo") and value.tzinfo is None:
        from datetime import UTC

        return value.replace(tzinfo=UTC) if hasattr(value, "hour") else value
    return value


def _pair_off(missing: list[Any], extra: list[Any]) -> tuple[list[Any], list[Any]]:
    """Remove pairs of rows that differ only by rounding."""
    left: list[Any] = []
    by_shape: dict[Any, list[Any]] = {}
    for row in extra:
        by_shape.setdefault(_shape(row), []).append(row)
    for row in missing:
        candidates = by_shape.get(_shape(row), [])
        match = next((i for i, other in enumerate(candidates) if _near(row, other)), None)
        if match is None:
            left.append(row)
        else:
            candidates.pop(match)
    return left, [row for rows in by_shape.values() for row in rows]


def _shape(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_shape(v) for v in value)
    return "float" if isinstance(value, float) else value


def _near(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_near(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=RELATIVE)
    return bool(a == b)
