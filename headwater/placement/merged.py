"""Keep rows together that were merged in a zone: a selection of cuts with one channel out of it. Pure.

Cuts of different branches are chosen apart, so over three and more layers they can send one operator's rows from one
zone to two. Between two zones there is one channel for all of them, so such a selection cannot run.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headwater.placement.cutnumbers import CutShape
from headwater.placement.problem import Ints
from headwater.placement.queueing import Floats
from headwater.placement.situation import Situation


def together(situation: Situation, selection: Ints, first: Iterable[int] = (), *, of: Floats | None = None) -> Ints:
    """Return the selection with other cuts for the branches whose merged rows would be divided.

    Branches ``first`` keep their cuts, then those with lower numbers. Another one gets an allowed cut that agrees
    with them: the least of ``of`` ([b, c]); without it the one that moves fewest operators, then the one of least
    cost. A branch without such a cut keeps its own, and the selection does not fit.
    """
    shape = situation.table.shape
    if not shape.keys:
        return selection
    found, goes_to = selection.copy(), np.full(shape.keys, -1, dtype=np.int64)
    for b in dict.fromkeys((*first, *range(len(found)))):
        agrees = _agree(shape, b, goes_to)
        if not agrees[found[b]]:
            among = np.flatnonzero(agrees & situation.numbers.allowed[b, : len(agrees)])
            if len(among):
                found[b] = among[_nearest(situation, b, int(found[b]), among, of)]
        key, zone = shape.key[b, found[b]], shape.zone[b, found[b]]
        new = (key >= 0) & (goes_to[key] < 0)
        goes_to[key[new]] = zone[new]
    return found


def _agree(shape: CutShape, b: int, goes_to: Ints) -> np.typing.NDArray[np.bool_]:
    """Return, for each choice of a branch, whether its merged rows go where those of earlier branches go."""
    count = int(shape.choices[b])
    key, zone = shape.key[b, :count], shape.zone[b, :count]
    known = np.where(key < 0, -1, goes_to[key])
    agrees: np.typing.NDArray[np.bool_] = ((known < 0) | (known == zone)).all(axis=1)
    return agrees


def _nearest(situation: Situation, b: int, choice: int, among: Ints, of: Floats | None) -> int:
    if of is not None:
        return int(np.argmin(of[b, among]))
    hosts = situation.table.hosts[b]
    moved = (hosts[among] != hosts[choice]).sum(axis=1)
    return int(np.lexsort((situation.numbers.cost[b, among], moved))[0])
