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
        value of independent rates: wholly). Each scenario has all sources' errors of one earlier step, since sources
        often change together.

        >>> record = ForecastRecord()
        >>> [round(one[0]) for one in record.scenarios({0: 100.0})]
        [75, 80, 85, 90, 95, 100, 100, 105, 110, 115, 120, 130]
        """
        means = {s: _mean([one[s] for one in (*self.predicted, *self.actual)], rate) for s, rate in predicted.items()}
        before, after = ([_logs(one, means) for one in many] for many in (self.predicted, self.actual))
        pairs = [(x[s], y[s]) for x, y in zip(before, after, strict=True) for s in means]
        kept = (_PRIOR + math.fsum(x * y for x, y in pairs)) / (_PRIOR + math.fsum(x * x for x, _ in pairs))
        kept = min(1.0, max(0.0, kept))
        errors = [{s: y[s] - kept * x[s] for s in means} for x, y in zip(before, after, strict=True)]
        errors = errors[: -MOST_SCENARIOS - 1 : -1]
        missing = max(0, len(_ASSUMED) - len(errors))
        assumed = [math.log(_ASSUMED[n * len(_ASSUMED) // missing]) for n in range(missing)]
        errors += [dict.fromkeys(means, error) for error in assumed]
        now = _logs(predicted, means)
        return [{s: means[s] * math.exp(kept * now[s] + error[s]) for s in means} for error in errors]


def _mean(rates: Sequence[float], otherwise: float) -> float:
    """Return the geometric mean of a source's rates above 0, since errors are factors."""
    logs = [math.log(rate) for rate in rates if rate > 0]
    return math.exp(fmean(logs)) if logs else max(otherwise, 1.0)


def _logs(rates: Mapping[int, float], means: Mapping[int, float]) -> dict[int, float]:
    return {s: math.log(max(rates[s] / mean, _LEAST)) for s, mean in means.items()}
