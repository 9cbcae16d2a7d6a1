"""The selection of least RU that keeps the limits with a given probability, over the loads that may come. Pure.

A selection of least RU at the forecast rates lies on its limits, so that half of the forecast's errors break them.
This scheduler measures selections at each load that may come (``headwater.placement.uncertainty``) instead. It takes
them from ``tsoo_exact`` at quantiles of these loads, then combines their cuts, one branch after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from headwater.placement.cutnumbers import CutLoad
from headwater.placement.exact import Exactness, tsoo_exact
from headwater.placement.problem import Ints
from headwater.placement.situation import ScheduleDecision, Situation

_QUANTILES = (0.7, 0.85, 1.0)
"""Quantiles of the rates at which candidates are searched."""
_EFFORT = Exactness(steps=20, most_steps=40)
"""Effort of each search of a candidate: there are several, and they need not be optimal."""
_PASSES = 2
"""Passes over the branches that combine candidates."""
_LEAST = 1e-3
"""Least probability by which cost is divided."""


def tsoo_robust(situation: Situation) -> ScheduleDecision:
    """Return the selection of least mean RU that keeps the limits with ``Limits.confidence``.

    If there is none, weigh the probability against the RU. Without loads that may come, the same as ``tsoo_exact``.
    """
    if not situation.possible:
        return tsoo_exact(situation)
    trials = _Trials(situation)
    found = list(_candidates(situation))
    best = min(found, key=trials.badness)
    for _ in range(_PASSES):
        before = best
        for b in range(len(best)):
            for choice in dict.fromkeys(int(one[b]) for one in found):
                other = best.copy()
                other[b] = choice
                best = min(best, other, key=trials.badness)
        if (best == before).all():
            break
    chance = trials.outlook(best)[0]
    measured = situation.measure(best)
    return ScheduleDecision(best, measured, chance >= situation.limits.confidence, chance=chance)


def tsoo_margin(situation: Situation, share: float = 0.8, *, effort: Exactness | None = None) -> ScheduleDecision:
    """Return what ``tsoo_exact`` finds within a share of the limits: a margin without knowledge of errors."""
    limits = situation.limits
    less = replace(limits, max_latency=share * limits.max_latency, max_bandwidth=share * limits.max_bandwidth)
    return situation.decided(tsoo_exact(replace(situation, limits=less), effort).selection)


@dataclass(frozen=True, eq=False)
class _Trials:
    """Selections measured at each load that may come."""

    situation: Situation
    _known: dict[bytes, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def _loads(self) -> tuple[Situation, ...]:
        return tuple(replace(self.situation, load=load, possible=()) for load in self.situation.possible)

    @cached_property
    def _price(self) -> float:
        """The cost of each moved operator, as in ``tsoo_exact``."""
        current = self.situation.current
        return 0.0 if current is None else Exactness.price * self.situation.measure(current).cost

    def outlook(self, selection: Ints) -> tuple[float, float]:
        """Return the probability that all limits are kept, and the mean RU with the price of changes.

        The load that comes may be worse than all known ones: kept / (loads + 1), as in conformal prediction.
        """
        key = selection.tobytes()
        if key not in self._known:
            kept, cost = 0, 0.0
            for one in self._loads:
                measured = one.measure(selection)
                kept += one.keeps(measured)
                cost += measured.cost
            moved = float(self.situation.moved[np.arange(len(selection)), selection].sum())
            count = len(self._loads)
            self._known[key] = kept / (count + 1), cost / count + self._price * moved
        return self._known[key]

    def badness(self, selection: Ints) -> tuple[bool, float]:
        """Return a sort key: the mean RU; without enough probability, divided by its cube.

        So a selection is not much dearer than another one that keeps the limits nearly as often.
        """
        chance, cost = self.outlook(selection)
        if chance >= self.situation.limits.confidence:
            return False, cost
        return True, cost / max(chance, _LEAST) ** 3


def _candidates(situation: Situation) -> Iterator[Ints]:
    """Yield the exact selections at quantiles of the loads, at the forecast with a margin, and the running one."""
    alone = replace(situation, possible=())
    if situation.current is not None:
        yield situation.current
    yield tsoo_exact(alone, _EFFORT).selection
    yield tsoo_margin(alone, effort=_EFFORT).selection
    for share in _QUANTILES:
        yield tsoo_exact(replace(alone, load=_quantile(situation.possible, share)), _EFFORT).selection


def _quantile(loads: tuple[CutLoad, ...], share: float) -> CutLoad:
    """Return a load with the quantile of each rate and of each amount used by others."""
    return CutLoad(
        rates={s: float(np.quantile([load.rates[s] for load in loads], share)) for s in loads[0].rates},
        memory=np.quantile([load.memory for load in loads], share, axis=0),
        processes=loads[0].processes,
        links=np.quantile([load.links for load in loads], share, axis=0),
    )
