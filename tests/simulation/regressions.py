"""Histories that once broke a rule, made as short as possible; each found a defect that was mended."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.plan.edit import Fuse
from tests.simulation.history import EDITS, History, Step

FUSE_COUNT_AND_PASS = EDITS.index(Fuse(first="count", second="pass", to="site"))

REGRESSIONS: Mapping[str, History] = {
    "a stop reaches a new agent before it has adopted the query": History(
        (
            Step("pass", (), 4.0),
            Step("kill", ("agent S1",), 2.5),
            Step("stop", (), 15.0),
        )
    ),
    "an idle unit's query is adopted, and is to have read its inputs": History(
        (
            Step("pass", (), 15.0),
            Step("kill", ("agent C1",), 15.0),
            Step("edit", (FUSE_COUNT_AND_PASS,), 15.0),
        )
    ),
    "a stop is wanted while a step of another change fails": History(
        (
            Step("cut", ("A", "E1", 25.0), 0.0),
            Step("stop", (), 0.0),
            Step("full", ("C1", 7), 15.0),
        ),
        784,
    ),
    "a power cut leaves the floor of a channel": History(
        (
            Step("write", ("L1", 3), 4.0),
            Step("power", ("S1",), 2.5),
            Step("write", ("L1", 3), 4.0),
            Step("power", ("E1",), 5.0),
            Step("power", ("C1",), 5.0),
        )
    ),
}

KNOWN_GAPS: Mapping[str, History] = {
    "a first deployment that is superseded by other cuts strands the rows of a unit that has run": History(
        (
            Step("edit first", (4,), 0.2),
            Step("edit first", (4,), 0.2),
            Step("kill at", ("spark E2", 65), 0.2),
            Step("edit first", (0,), 0.0),
        )
    ),
}
"""Histories that still break a rule."""
