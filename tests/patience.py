"""How long tests wait for events."""

from __future__ import annotations

import os
import time

_LOOP = 0.1
"""Seconds that the loop below takes on a free core of a common server."""


def _slowness() -> float:
    """Return how much slower than two free cores this machine is now, from 1 to 6."""
    begun = time.perf_counter()
    total = 0
    for number in range(2_000_000):
        total += number
    share = (time.perf_counter() - begun) / _LOOP
    return min(max(share, 2 / len(os.sched_getaffinity(0)) * 1.5, 1.0), 6.0)


PATIENCE = min(1200.0 * _slowness(), 3000.0)
"""Seconds until a test gives up: far beyond need, also on one core beside other work. Only a failure takes so long.

Less than an hour: that is the most that a request to Kafka may take."""
