"""What rates will be next, from what they were: so that a change comes before a limit breaks. Pure."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

from headwater.errors import PlacementError, suggestion

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


FORECASTS: Mapping[str, Forecast] = {"last": last_value, "ewma": ewma, "holt_winters": holt_winters}


def forecast(name: str) -> Forecast:
    """Find a forecast; raise PlacementError where there is none of this name."""
    if name not in FORECASTS:
        raise PlacementError(
            f"there is no forecast '{name}'",
            hint=suggestion(name, FORECASTS, "the forecasts are"),
        )
    return FORECASTS[name]
