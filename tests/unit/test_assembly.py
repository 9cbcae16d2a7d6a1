"""How far event time is in a unit that is put together of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.plan.carry import Carry, Donor, Reading, Share
from headwater.runtime.assembly import event_time
from headwater.runtime.savedstate import Saved

AHEAD = Saved(batch=4, watermark=100, next_watermark=120)
BEHIND = Saved(batch=3, watermark=80, next_watermark=100)
UNTIMED = Saved(batch=9)


def share(operator: str, *donors: str) -> Share:
    return Share(operator=operator, number=0, donors=tuple(Donor(unit=d, number=0) for d in donors))


def carry(shares: list[Share], *readings: tuple[str, ...]) -> Carry:
    donors = {d.unit for s in shares for d in s.donors} | {d for r in readings for d in r}
    return Carry(
        unit="U",
        donors=tuple(sorted(donors)),
        shares=tuple(shares),
        readings=tuple(Reading(operator=f"i{n}", donors=d) for n, d in enumerate(readings)),
    )


def joined(carry: Carry, *at_work: str) -> Carry:
    """Let channels join the inputs; ``at_work``: who did what comes over them now."""
    readings = tuple(replace(r, joined=True) for r in carry.readings)
    return replace(carry, readings=readings, donors=(*carry.donors, *at_work))


def prompt(carry: Carry) -> Carry:
    return replace(carry, readings=tuple(replace(r, prompt=True) for r in carry.readings))


@pytest.mark.parametrize(
    ("taken", "known", "late", "passed"),
    [
        # What the upper one holds back is not late because the lower one is past it.
        (carry([share("once", "E"), share("counted", "C")], ("E",)), {"E": AHEAD, "C": BEHIND}, 80, 120),
        # A unit without state does not say what is late for one with state.
        (carry([share("counted", "C")], ("E",)), {"E": UNTIMED, "C": BEHIND}, 80, 100),
        (carry([share("once", "E")], ("E",)), {"E": AHEAD, "C": BEHIND}, 100, 120),
        # One operator's state of two streams: whoever is behind counts.
        (carry([share("counted", "E", "F")], ("E", "F")), {"E": AHEAD, "F": BEHIND}, 80, 100),
        (carry([share("counted", "C")], ("E", "F")), {"E": AHEAD, "F": UNTIMED, "C": BEHIND}, 80, 80),
        # A channel that begins tells itself how far it is.
        (carry([share("counted", "C")], ()), {"C": BEHIND}, 80, 80),
        (carry([], ("E",)), {"E": AHEAD}, 100, 120),
        # Nor does it where nothing of before can come over it any more.
        (prompt(carry([share("counted", "C")], ())), {"C": BEHIND}, 80, 100),
        # Rows of a location that joins are as far as they were where they come from.
        (prompt(joined(carry([], ("C",)), "E")), {"C": AHEAD, "E": BEHIND}, 80, 100),
        (prompt(joined(carry([share("rising", "E", "C")], ("C",)))), {"C": AHEAD, "E": BEHIND}, 80, 100),
        (joined(carry([share("rising", "E", "C")], ("C",))), {"C": AHEAD, "E": BEHIND}, 80, 80),
    ],
)
def test_rows_are_late_where_they_are_for_all(
    taken: Carry, known: dict[str, Saved], late: int, passed: int
) -> None:
    assert event_time(taken, known) == (late, passed)
