"""The rates that may come: a forecast, corrected by its past errors, and spread as these were. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

MOST_SCENARIOS = 32
"""Newest errors in use."""
_ASSUMED = (0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3)
"""Actual rates as shares of the forecast, assumed until as many errors are known."""
_LEAST = 1e-3
"""Least rate, as a share of the mean, whose logarithm is taken."""
_PRIOR = 0.5
"""Weight of the belief that forecasts need no correction, as a sum of squared logarithms."""
_MOST_KEPT = 1.2
_Logs = Mapping[int, float]
"""By source, the logarithm of a rate over the source's mean."""


@dataclass(frozen=True, kw_only=True)
class ForecastRecord:
    """Forecasts and the rates that came, oldest first, each by source."""

    predicted: list[Mapping[int, float]] = field(default_factory=list)
    actual: list[Mapping[int, float]] = field(default_factory=list)

    def add(self, predicted: Mapping[int, float], actual: Mapping[int, float]) -> None:
        """Record a forecast once its rates came."""
        self.predicted.append(predicted)
        self.actual.append(actual)

    def scenarios(self, predicted: Mapping[int, float]) -> list[dict[int, float]]:
        """Return equally probable rates that may come, the newest errors first, at most ``MOST_SCENARIOS``.

        A forecast far from a source's mean is corrected towards it by the share that the past shows (for the last
        value of independent rates: wholly), and moved on by a share of its change since the forecast before it (for
        rates that rise for hours: onwards; after peaks: back). Both shares are fitted by least squares over all
        sources. Each scenario has all sources' errors of one earlier step, since sources often change together.

        >>> record = ForecastRecord()
        >>> [round(one[0]) for one in record.scenarios({0: 100.0})]
        [75, 80, 85, 90, 95, 100, 100, 105, 110, 115, 120, 130]
        """
        means = {s: _mean([one[s] for one in (*self.predicted, *self.actual)], rate) for s, rate in predicted.items()}
        before, after = ([_logs(one, means) for one in many] for many in (self.predicted, self.actual))
        changes = [{s: x[s] - last[s] for s in means} for last, x in zip(before[:1] + before[:-1], before, strict=True)]
        kept, on = _shares(before, changes, after)
        errors = [
            {s: y[s] - kept * x[s] - on * change[s] for s in means}
            for x, change, y in zip(before, changes, after, strict=True)
        ]
        errors = errors[: -MOST_SCENARIOS - 1 : -1]
        missing = max(0, len(_ASSUMED) - len(errors))
        assumed = [math.log(_ASSUMED[n * len(_ASSUMED) // missing]) for n in range(missing)]
        errors += [dict.fromkeys(means, error) for error in assumed]
        now = _logs(predicted, means)
        last = before[-1] if before else now
        middle = {s: kept * now[s] + on * (now[s] - last[s]) for s in means}
        return [{s: means[s] * math.exp(middle[s] + error[s]) for s in means} for error in errors]


def _shares(before: Sequence[_Logs], changes: Sequence[_Logs], after: Sequence[_Logs]) -> tuple[float, float]:
    """Return the shares of a forecast and of its change in the rate that came, by ridge regression."""
    rows = [(x[s], change[s], y[s]) for x, change, y in zip(before, changes, after, strict=True) for s in x]
    xx, xc, cc, xy, cy = (
        math.fsum(row[n] * row[m] for row in rows) for n, m in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
    )
    xx, cc, xy = xx + _PRIOR, cc + _PRIOR, xy + _PRIOR
    whole = xx * cc - xc * xc
    kept, on = (xy * cc - cy * xc) / whole, (cy * xx - xy * xc) / whole
    return min(_MOST_KEPT, max(0.0, kept)), min(1.0, max(-1.0, on))


def _mean(rates: Sequence[float], otherwise: float) -> float:
    """Return the geometric mean of a source's rates above 0, since errors are factors."""
    logs = [math.log(rate) for rate in rates if rate > 0]
    return math.exp(fmean(logs)) if logs else max(otherwise, 1.0)


def _logs(rates: Mapping[int, float], means: Mapping[int, float]) -> dict[int, float]:
    return {s: math.log(max(rates[s] / mean, _LEAST)) for s, mean in means.items()}
