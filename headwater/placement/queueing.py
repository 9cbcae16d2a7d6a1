"""How long a queue and its server take. Pure; rates in 1/s, times in s; an unstable queue takes for ever."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def mm1(service_rate: float, arrival_rate: float) -> float:
    """Give the mean time in an M/M/1 queue and its server: 1/(μ−λ) (AELS, first terms of eq. 7 and 8).

    >>> mm1(10.0, 8.0)
    0.5
    >>> mm1(8.0, 8.0)
    inf
    """
    return 1.0 / (service_rate - arrival_rate) if service_rate > arrival_rate else math.inf


def mm1_of(service_rates: Floats, arrival_rate: float) -> Floats:
    """Give ``mm1`` for many servers, an array of the same shape."""
    free = service_rates - arrival_rate
    found: Floats = np.divide(1.0, free, out=np.full(free.shape, np.inf), where=free > 0)
    return found
