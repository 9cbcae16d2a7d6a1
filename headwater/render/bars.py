"""Figures over time as a line of bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_BARS = "▁▂▃▄▅▆▇█"


def bar(share: float) -> str:
    """Draw a share as a bar; more than the whole is a full bar.

    >>> "".join(map(bar, (0.0, 0.5, 1.0, float("inf"))))
    '▁▄██'
    """
    return _BARS[int(min(1.0, max(0.0, share)) * (len(_BARS) - 1))]


def course(values: Iterable[float | None]) -> str:
    """Draw values over time, scaled to the highest; a gap for unknown values.

    >>> course([1.0, None, 2.0])
    '▄ █'
    """
    known = list(values)
    top = max((v for v in known if v is not None), default=0.0)
    return "".join(" " if v is None else bar(v / top if top else 0.0) for v in known)


def stretches(values: Sequence[float], most: int) -> list[float]:
    """Return the highest value of each of at most ``most`` stretches of the values.

    >>> stretches([1.0, 5.0, 2.0], 2)
    [5.0, 2.0]
    """
    each = max(1, math.ceil(len(values) / most))
    return [max(values[n : n + each]) for n in range(0, len(values), each)]
