"""Forecasts of rates from their history, so that a change precedes a violated limit. Pure."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

from headwater.core.errors import PlacementError, suggestion

Forecast = Callable[[Sequence[float]], float]
"""From values at equal intervals (at least one, oldest first) to the next value."""


def last_value(seen: Sequence[float]) -> float:
    """Predict the last value.

    >>> last_value([1.0, 3.0])
    3.0
    """
    return seen[-1]


def ewma(seen: Sequence[float], *, weight: float = 0.5) -> float:
    """Predict the moving average, in which each value has ``weight`` of the rest left by newer ones.

    >>> ewma([1.0, 3.0])
    2.0
    """
    level = seen[0]
    for value in seen[1:]:
        level += weight * (value - level)
    return level


def trend(seen: Sequence[float], *, weight: float = 0.8, turn: float = 0.5, damped: float = 0.5) -> float:
    """Predict level plus trend; the trend is damped, so it loses half of itself with each step.

    Holt 1957, damped as in Gardner and McKenzie 1985.

    Unlike an average, it predicts a higher value only for a rising series. Never below 0.

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
    """Predict level and trend, and a season once two seasons were seen.

    Fitted to the newest ``most`` values; the last value if there are too few. Never below 0.
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
        warnings.simplefilter("ignore")  # a fit that does not converge is still used
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
    """Return a forecast by name; raise PlacementError if it is unknown."""
    if name not in FORECASTS:
        raise PlacementError(
            f"unknown forecast '{name}'",
            hint=suggestion(name, FORECASTS, "the forecasts are"),
        )
    return FORECASTS[name]
