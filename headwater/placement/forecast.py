"""What rates will be next, from what they were: so that a change comes before a limit breaks. Pure."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

from headwater.core.errors import PlacementError, suggestion

Forecast = Callable[[Sequence[float]], float]
"""From values at equal distances, the oldest first and at least one, to the next one."""


def last_value(seen: Sequence[float]) -> float:
    """Expect what was last.

    >>> last_value([1.0, 3.0])
    3.0
    """
    return seen[-1]


def ewma(seen: Sequence[float], *, weight: float = 0.5) -> float:
    """Expect the average, in which each value has ``weight`` of what newer ones leave.

    >>> ewma([1.0, 3.0])
    2.0
    """
    level = seen[0]
    for value in seen[1:]:
        level += weight * (value - level)
    return level


def trend(seen: Sequence[float], *, weight: float = 0.8, turn: float = 0.5, damped: float = 0.5) -> float:
    """Expect that it goes on as of late: level and trend, the trend half of itself with each step.

    Holt 1957, damped as in Gardner and McKenzie 1985.

    Unlike an average, it expects more only of what rises. Never below 0.

    >>> round(trend([1.0, 2.0, 3.0, 4.0]), 1), round(trend([9.0, 9.0, 1.0]), 1), trend([2.0, 2.0])
    (4.2, 1.0, 2.0)
    """
    level, slope = seen[0], 0.0
    for value in seen[1:]:
        before = level
        level = weight * value + (1 - weight) * (level + damped * slope)
        slope = turn * (level - before) + (1 - turn) * damped * slope
    return max(0.0, level + damped * slope)


def holt_winters(seen: Sequence[float], *, season: int = 0, most: int = 500) -> float:
    """Expect level and trend to go on, and a season where at least two of its length were seen.

    Fitted to the newest ``most`` values; the last value where there are too few. Never below 0.
    """
    values = list(seen[-most:])
    if len(values) < 4:
        return values[-1]
    try:
        from statsmodels.tsa.holtwinters import ExponentialSmoothing
    except ImportError as error:
        raise PlacementError(
            "holt_winters needs statsmodels", hint="install it: pip install 'headwater[forecast]'"
        ) from error
    seasonal = {"seasonal": "add", "seasonal_periods": season} if 1 < season <= len(values) // 2 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where the fit does not converge, its best is used
        model = ExponentialSmoothing(values, trend="add", damped_trend=True, **seasonal)
        found = float(model.fit().forecast(1)[0])
    return max(0.0, found) if math.isfinite(found) else values[-1]


FORECASTS: Mapping[str, Forecast] = {
    "last": last_value,
    "ewma": ewma,
    "trend": trend,
    "holt_winters": holt_winters,
}


def forecast(name: str) -> Forecast:
    """Find a forecast; raise PlacementError where there is none of this name."""
    if name not in FORECASTS:
        raise PlacementError(
            f"there is no forecast '{name}'",
            hint=suggestion(name, FORECASTS, "the forecasts are"),
        )
    return FORECASTS[name]
