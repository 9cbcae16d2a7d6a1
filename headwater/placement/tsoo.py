"""TSOO-H and aTSOO-H: schedulers that move one cut after another. Pure.

"Adaptive scheduling of continuous operators for IoT edge analytics", sections 5.1 to 5.3, after the text: listings
2 and 3 never start (``continue`` has no value before the loop) and end after one good move. A cut *backward*
takes an operator one zone up, *down* one zone down, as with fog and cloud there. Over more layers a cut takes those
with it whose merged rows have to share its channel (``headwater.placement.merged``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headwater.placement.merged import together
from headwater.placement.problem import Ints
from headwater.placement.queueing import Floats
from headwater.placement.situation import Measured, ScheduleDecision, Situation

_MOST_MOVES = 1_000
_TIE = 1e-30
"""NRU per bit/s into clouds: decides between cuts of equal NRU only."""


def tsoo_h(situation: Situation) -> ScheduleDecision:
    """Schedule from scratch (section 5.2)."""
    numbers = situation.numbers
    selection = least(situation, numbers.cost)  # RUMinCut
    measured = situation.measure(selection)
    if situation.keeps(measured):
        return situation.decided(selection, bound=measured.cost)
    selection = data_min_cut(situation)
    if situation.is_narrow(situation.measure(selection)):
        selection = hasten(situation, selection)
        if situation.keeps(situation.measure(selection)):
            selection = improve(situation, selection)
    return situation.decided(selection)


def atsoo_h(situation: Situation) -> ScheduleDecision:
    """Adapt the running selection (section 5.3, Algorithm 1); from scratch if there is none."""
    if situation.current is None:
        return tsoo_h(situation)
    selection = _made_to_fit(situation, situation.current)
    selection = _narrowed(situation, selection)
    if situation.is_narrow(situation.measure(selection)):
        selection = hasten(situation, selection)
    if situation.keeps(situation.measure(selection)):
        selection = improve(situation, selection)
    return situation.decided(selection)


def least(situation: Situation, of: Floats) -> Ints:
    """Return, for each branch, the choice of least value of ``of`` ([b, c]) that fits its hosts."""
    there = np.where(situation.numbers.allowed, of, np.inf)
    found: Ints = np.argmin(there, axis=1)
    found = np.where(np.isfinite(there.min(axis=1)), found, situation.all_up)
    if (together(situation, found, of=there) == found).all():
        return found
    # Merged rows have one channel: let each branch choose first, and take the least sum.
    every = np.arange(len(found))
    trials = [together(situation, found, (b,), of=there) for b in every.tolist()]
    return min(trials, key=lambda one: (not situation.measure(one).fits, float(there[every, one].sum())))


def data_min_cut(situation: Situation) -> Ints:
    """Return the cuts of least NRU (DataMinCut, section 5.1.1); of least B if those exceed its limit.

    With fog and cloud both are the same. Links without a limit have no NRU; then the least B decides.
    """
    numbers = situation.numbers
    found = least(situation, numbers.network + _TIE * numbers.into_cloud)
    if situation.is_narrow(situation.measure(found)):
        return found
    return least(situation, numbers.into_cloud)


def _made_to_fit(situation: Situation, selection: Ints) -> Ints:
    """If a host has no room left, take the least cut before the current one (lines 4 to 12)."""
    found, numbers = selection.copy(), situation.numbers
    for b in np.flatnonzero(~numbers.allowed[np.arange(len(selection)), selection]).tolist():
        heights = situation.heights[b]
        before = (heights >= heights[selection[b]]).all(axis=1)
        bits = np.where(before & numbers.allowed[b, : len(heights)], _bits(situation, b), np.inf)
        found[b] = int(np.argmin(bits)) if np.isfinite(bits.min()) else situation.all_up[b]
        found = together(situation, found, (b,))
    return found


def _bits(situation: Situation, b: int) -> Floats:
    return situation.numbers.into_cloud[b, : situation.table.shape.choices[b]]


def _narrowed(situation: Situation, selection: Ints) -> Ints:
    """If B exceeds its limit, cut streams where they are least, first those that go up whole (13 to 23)."""
    if situation.is_narrow(situation.measure(selection)):
        return selection
    found, numbers = selection.copy(), situation.numbers
    whole = selection == situation.all_up
    narrow = data_min_cut(situation)
    found[whole] = narrow[whole]
    found = together(situation, found, np.flatnonzero(whole).tolist())
    rates = numbers.into_cloud[np.arange(len(found)), situation.all_up]
    for b in np.argsort(-rates, kind="stable").tolist():
        if situation.is_narrow(situation.measure(found)):
            break
        if numbers.into_cloud[b, narrow[b]] < numbers.into_cloud[b, found[b]]:
            found[b] = narrow[b]
            found = together(situation, found, (b,))
    return found


def hasten(situation: Situation, selection: Ints) -> Ints:
    """Move operators on the slowest paths up, then down, until T is met or no move helps (section 5.2.1)."""
    for up in (True, False):
        selection = _moved(situation, selection, up=up)
    return selection


def _moved(situation: Situation, selection: Ints, *, up: bool) -> Ints:
    """Move cuts of branches that are too slow, the slowest first, while they get faster."""
    selection = selection.copy()
    measured = situation.measure(selection)
    stuck: set[int] = set()
    for _ in range(_MOST_MOVES):
        if situation.is_quick(measured):
            break
        slow = [
            b
            for b in np.argsort(-measured.times, kind="stable").tolist()
            if b not in stuck and measured.times[b] > situation.limits.most_seconds
        ]
        if not slow:
            break
        b = slow[0]
        best: tuple[Ints, Measured] | None = None
        for c in moves(situation, b, int(selection[b]), up=up):
            trial = changed(situation, selection, b, c)
            then = situation.measure(trial)
            if not (then.fits and situation.is_narrow(then) and then.times[b] < measured.times[b]):
                continue
            if best is None or then.times[b] < best[1].times[b]:
                best = trial, then
        if best is None:
            stuck.add(b)
        else:
            selection, measured = best
    return selection


def changed(situation: Situation, selection: Ints, b: int, choice: int) -> Ints:
    """Return the selection with another choice for a branch, and for those that share its channels."""
    found = selection.copy()
    found[b] = choice
    return together(situation, found, (b,))


def moves(situation: Situation, b: int, choice: int, *, up: bool) -> Iterator[int]:
    """Yield the choices that differ from a given one by one operator, one step up or down."""
    heights = situation.heights[b]
    further = heights - heights[choice]
    if not up:
        further = -further
    steps = (further >= 0).all(axis=1) & ((further > 0).sum(axis=1) == 1)
    among = np.flatnonzero(steps & situation.numbers.allowed[b, : len(heights)])
    far = further[among].sum(axis=1)
    # One zone further, not several.
    for c, distance in zip(among.tolist(), far.tolist(), strict=True):
        moved = int(np.argmax(further[c]))
        nearer = [f for a, f in zip(among.tolist(), far.tolist(), strict=True) if further[a, moved] > 0]
        if distance == min(nearer):
            yield c


def improve(situation: Situation, selection: Ints) -> Ints:
    """Move cuts backward if RU falls, the largest gain first, each branch once (section 5.2.2)."""
    found, numbers, cost = selection, situation.numbers, situation.measure(selection).cost
    gains = []
    for b, choice in enumerate(selection.tolist()):
        heights = situation.heights[b]
        behind = (heights >= heights[choice]).all(axis=1) & numbers.allowed[b, : len(heights)]
        change = np.where(behind, numbers.cost[b, : len(heights)] - numbers.cost[b, choice], np.inf)
        gains += [(float(change[c]), b, int(c)) for c in np.flatnonzero(change < 0)]
    moved: set[int] = set()
    for _, b, c in sorted(gains):
        if b in moved:
            continue
        trial = changed(situation, found, b, c)
        then = situation.measure(trial)
        if situation.keeps(then) and then.cost < cost:
            moved.add(b)
            found, cost = trial, then.cost
    return found
