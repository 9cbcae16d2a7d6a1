"""The selection of least RU within all limits; if there is none, the nearest one. Pure.

TSOO's heuristics move one cut after another; this searches all (``headwater.placement.cutsearch``). A price on
each moved operator prevents changes that do not pay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headwater.placement.problem import Ints
from headwater.placement.queueing import Floats
from headwater.placement.situation import ScheduleDecision, Situation
from headwater.placement.tsoo import hasten


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """Effort of the search, and the price of a change.

    ``steps``: limit after a selection is found; ``most_steps``: limit before. ``price``: of each moved operator, as a
    share of the RU of the running placement. ``stay``: keep the running placement if no placement meets all
    limits; else take the nearest one.
    """

    steps: int = 40
    most_steps: int = 250
    price: float = 0.01
    stay: bool = True


def tsoo_exact(situation: Situation, how: Exactness | None = None) -> ScheduleDecision:
    """Return the selection of least RU, including the price of changes, within all limits."""
    how = how or Exactness()
    own = situation.numbers.cost
    if situation.current is not None and how.price:
        scale = situation.measure(situation.current).cost
        own = own + how.price * scale * situation.moved
    limits = situation.limits
    found, _, bound, steps = _search(situation, own, limits.most_seconds, limits.max_bandwidth, how)
    if found[0] >= 0:
        return situation.decided(found, bound=bound, steps=steps)
    if how.stay and situation.current is not None:
        return situation.decided(situation.current, bound=bound, steps=steps)
    return situation.decided(_least_bad(situation), bound=bound, steps=steps)


def _search(
    situation: Situation, own: Floats, seconds: float, bandwidth: float, how: Exactness
) -> tuple[Ints, float, float, int]:
    shape, numbers = situation.table.shape, situation.numbers
    found, cost, bound, steps = situation.loops.search(
        shape, numbers, situation.space, own, seconds, bandwidth, how.steps, how.most_steps
    )
    return found, float(cost), float(bound), int(steps)


def _least_bad(situation: Situation) -> Ints:
    """Return the selection nearest to the limits: room first, then bandwidth, then time."""
    limits = situation.limits
    found, best = situation.all_up, (True, math.inf, math.inf)
    candidates = [situation.all_up, situation.all_down, *_eased(situation)]
    candidates += [] if situation.current is None else [situation.current]
    for selection in (*candidates, *(hasten(situation, one) for one in candidates[:3])):
        measured = situation.measure(selection)
        over = max(0.0, measured.bandwidth / limits.max_bandwidth - 1) if limits.max_bandwidth else math.inf
        badness = (not measured.fits, over if over > 1e-9 else 0.0, measured.worst)
        if badness < best:
            found, best = selection, badness
    return found


def _eased(situation: Situation) -> list[Ints]:
    """Return the cheapest selections at several prices of bandwidth and of shared cpu."""
    numbers, burden = situation.numbers, situation.space.burden
    own = np.where(numbers.allowed, numbers.cost, np.inf)
    found = []
    dearest = max(float(own[np.isfinite(own)].max(initial=0.0)), 1e-12)
    for of in (burden, numbers.into_cloud):
        scale = dearest / max(float(of.max(initial=0.0)), 1e-12)
        for price in (0.0, 0.1, 1.0, 10.0, 1e3):
            found.append(np.argmin(own + price * scale * of, axis=1))
    return found
