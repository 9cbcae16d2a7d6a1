"""Time in a queue and its server. Pure; rates in 1/s, times in s; ∞ for an unstable queue."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def mm1(service_rate: float, arrival_rate: float) -> float:
    """Return the mean time in an M/M/1 queue and its server: 1/(μ−λ) (AELS, first terms of eq. 7 and 8).

    >>> mm1(10.0, 8.0)
    0.5
    >>> mm1(8.0, 8.0)
    inf
    """
    return 1.0 / (service_rate - arrival_rate) if service_rate > arrival_rate else math.inf


def mm1_of(service_rates: Floats, arrival_rate: float) -> Floats:
    """Return ``mm1`` for many servers, an array of the same shape."""
    free = service_rates - arrival_rate
    found: Floats = np.divide(1.0, free, out=np.full(free.shape, np.inf), where=free > 0)
    return found


def md1(service_rate: float, arrival_rate: float) -> float:
    """Return the mean time in an M/D/1 queue and its server: ρ/(2μ(1−ρ)) + 1/μ (aTSOO, eq. 21 and 23).

    >>> round(md1(10.0, 8.0), 12)
    0.3
    >>> md1(8.0, 8.0)
    inf
    """
    if service_rate <= arrival_rate:
        return math.inf
    load = arrival_rate / service_rate
    return load / (2 * service_rate * (1 - load)) + 1 / service_rate


def dm1(service_rate: float, interval: float) -> float:
    """Return the mean time in a D/M/1 queue and its server: γ/(μ(1−γ)) + 1/μ (aTSOO, eq. 21 and 22).

    One arrival every ``interval`` seconds. γ is the root below 1 of γ = exp(−μβ(1−γ)), which exists if μβ > 1;
    else the queue grows without limit.

    >>> round(dm1(2.0, 1.0), 6), dm1(1.0, 1.0)
    (0.6275, inf)
    """
    offered = service_rate * interval
    if offered <= 1.0:
        return math.inf
    return 1 / (service_rate * (1 - _root(offered)))


def _root(offered: float) -> float:
    """Solve γ = exp(−a(1−γ)) for γ < 1 by Newton's method, from below, where it cannot overshoot.

    f(γ) = γ − exp(−a(1−γ)) is concave with f(0) < 0, so that its tangents cross zero before it does.
    """
    root = 0.0
    for _ in range(100):
        power = math.exp(-offered * (1 - root))
        slope = 1 - offered * power
        if slope <= 0:
            break
        step = (power - root) / slope
        root += step
        if step <= 1e-15:
            break
    return min(root, 1.0)
