"""Baselines of TSOO: TRCS, FogOnly, FCInterplay (section 6.1 of its paper). Pure."""

from __future__ import annotations

import numpy as np

from headwater.placement.merged import together
from headwater.placement.problem import Ints
from headwater.placement.situation import Measured, ScheduleDecision, Situation
from headwater.placement.tsoo import changed, data_min_cut, moves

_MOST_MOVES = 1_000


def fog_only(situation: Situation) -> ScheduleDecision:
    """Run as much below as the hosts have room for."""
    return situation.decided(together(situation, situation.all_down))


def fc_interplay(situation: Situation) -> ScheduleDecision:
    """Send a stream up whole if T allows it, or cannot be met anyway; else cut it where it is least.

    Streams go up only as far as B allows, and are decided one after the other.
    """
    found, numbers, limits = situation.all_up.copy(), situation.numbers, situation.limits
    narrow = data_min_cut(situation)
    taken = numbers.trunk_cloud
    for b in range(len(found)):
        times = [_time(situation, found, b, c) for c in np.flatnonzero(numbers.allowed[b]).tolist()]
        whole = _time(situation, found, b, int(found[b]))
        hopeless = min(times, default=np.inf) > limits.most_seconds
        goes_up = hopeless or whole <= limits.most_seconds
        if not goes_up or taken + numbers.into_cloud[b, found[b]] > limits.max_bandwidth:
            found[b] = narrow[b]
        taken += numbers.into_cloud[b, found[b]]
    return situation.decided(together(situation, found))


def _time(situation: Situation, selection: Ints, b: int, choice: int) -> float:
    trial = selection.copy()
    trial[b] = choice
    return float(situation.measure(trial).times[b])


def trcs(situation: Situation) -> ScheduleDecision:
    """Start from the running placement, or all in the cloud; move operators down to meet a limit, up if B allows.

    Each move takes the least memory below among those that help: TRCS uses little of it.
    """
    limits = situation.limits
    found = (situation.all_up if situation.current is None else situation.current).copy()
    found = np.where(situation.numbers.allowed[np.arange(len(found)), found], found, situation.all_up)
    measured = situation.measure(found)
    for _ in range(_MOST_MOVES):
        narrow, quick = situation.is_narrow(measured), situation.is_quick(measured)
        if narrow and quick:
            break
        step = _step(situation, found, measured, narrow=narrow)
        if step is None:
            break
        found, measured = step
    for _ in range(_MOST_MOVES):
        if measured.bandwidth >= limits.min_bandwidth:
            break
        back = _back(situation, found)
        if back is None:
            break
        found, measured = back
    return situation.decided(found)


def _step(situation: Situation, selection: Ints, measured: Measured, *, narrow: bool) -> tuple[Ints, Measured] | None:
    """Return the smallest move down that reduces B, if B exceeds its limit, or else T."""
    best: tuple[float, Ints, Measured] | None = None
    for b in range(len(selection)):
        if narrow and not measured.times[b] > situation.limits.most_seconds:
            continue
        for c in moves(situation, b, int(selection[b]), up=False):
            trial = changed(situation, selection, b, c)
            then = situation.measure(trial)
            helps = then.times[b] < measured.times[b] if narrow else then.bandwidth < measured.bandwidth
            if then.fits and helps and (situation.is_narrow(then) or not narrow):
                taken = _below(situation, trial) - _below(situation, selection)
                if best is None or taken < best[0]:
                    best = taken, trial, then
    return None if best is None else best[1:]


def _back(situation: Situation, selection: Ints) -> tuple[Ints, Measured] | None:
    """Return the move up that frees most and keeps all limits."""
    best: tuple[float, Ints, Measured] | None = None
    for b in range(len(selection)):
        for c in moves(situation, b, int(selection[b]), up=True):
            trial = changed(situation, selection, b, c)
            then = situation.measure(trial)
            freed = _below(situation, selection) - _below(situation, trial)
            if situation.keeps(then) and (best is None or freed > best[0]):
                best = freed, trial, then
    return None if best is None else best[1:]


def _below(situation: Situation, selection: Ints) -> float:
    """Return the bytes that a selection takes of hosts outside of clouds."""
    return sum(situation.table.memory_below(situation.load, b, c) for b, c in enumerate(selection.tolist()))
