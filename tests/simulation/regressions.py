"""Histories that once broke a rule, made as short as possible; each found a defect that was mended."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.plan.edit import Fuse, Move
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
    "other cuts supersede a first deployment, of which a unit has run and its reader has not": History(
        (
            Step("edit", (EDITS.index(Move(operator="count", to="cloud", at="L2")),), 0.2),
            Step("edit", (EDITS.index(Move(operator="count", to="cloud", at="L2")),), 0.2),
            Step("kill at", ("spark E2", 65), 0.2),
            Step("edit", (EDITS.index(Move(operator="count", to="cloud")),), 0.0),
        )
    ),
    "a first deployment is stopped half-way, and started with other cuts": History(
        (
            Step("go back", (3,), 0.2),
            Step("stop", (), 0.2),
            Step("edit", (EDITS.index(Fuse(first="count", second="pass", to="cloud")),), 0.2),
        ),
        446,
    ),
    "a deployment is stopped with rows in a channel, and started without its reader": History(
        (
            Step("pass", (), 15.0),
            Step("cut", ("S1", "C1", 25.0), 0.0),
            Step("cut", ("C1", "S1", 25.0), 0.0),
            Step("write", ("L1", 3), 4.0),
            Step("stop", (), 15.0),
            Step("pass", (), 15.0),
            Step("edit", (FUSE_COUNT_AND_PASS,), 15.0),
        )
    ),
    "Spark ends while its zone's disk is full": History(
        (
            Step("start", (), 1.0),
            Step("kill", ("spark E1",), 0.0),
            Step("slow", (0.5, 25.0), 1.0),
            Step("full", ("E1", 3), 4.0),
            Step("clock", ("C1", 3600.0), 15.0),
        ),
        12990,
    ),
    "a change that was to replace a unit is given up, and the next one fuses the unit": History(
        (
            Step("go back", (1,), 4.0),
            Step("update", (1, 0, True), 1.0),
            Step("silent", ("S1", 25.0), 0.0),
            Step("slow", (0.5, 6.0), 4.0),
            Step("edit", (EDITS.index(Fuse(first="keep", second="count", to="site")),), 1.0),
        ),
        98,
        locations=1,
    ),
    "a location leaves a first deployment of which only the sources run": History(
        (
            Step("slow", (5.0, 25.0), 0.2),
            Step("slow", (5.0, 25.0), 0.0),
            Step("write", ("L2", 4), 1.0),
            Step("update", (1, 1, True), 1.0),
            Step("clock", ("S1", 3600.0), 4.0),
            Step("slow", (0.5, 25.0), 15.0),
            Step("repeating", (0.1, 6.0), 0.2),
            Step("go back", (1,), 0.2),
        ),
        2458,
        locations=1,
    ),
    "a reader that never ran is to read its former input to the end, from another zone": History(
        (
            Step("edit", (EDITS.index(Move(operator="pass", to="cloud")),), 0.2),
            Step("edit", (EDITS.index(Move(operator="count", to="edge")),), 0.0),
            Step("full", ("E1", 6), 4.0),
            Step("kill", ("spark E1",), 0.0),
            Step("write", ("L2", 3), 15.0),
            Step("kill", ("controller A",), 1.0),
            Step("freeze", ("agent S1", 6.0), 4.0),
            Step("start", (), 15.0),
        ),
        3,
    ),
    "a reader is to read its former input to the end, whose writer was never prepared": History(
        (
            Step("freeze", ("agent C1", 1.0), 0.0),
            Step("kill at", ("agent E2", 26), 0.0),
            Step("freeze", ("controller A", 25.0), 0.0),
            Step("update", (0, 1, False), 4.0),
            Step("store fails", (3,), 0.2),
            Step("stop", (), 4.0),
            Step("stop", (), 4.0),
            Step("go back", (2,), 0.0),
        ),
        7895,
        locations=1,
    ),
    "a unit is stopped while its zone's disk is full, and started again": History(
        (
            Step("write", ("L1", 1), 4.0),
            Step("full", ("C1", 6), 15.0),
            Step("repeating", (0.5, 1.0), 4.0),
            Step("edit", (EDITS.index(Move(operator="keep", to="site")),), 1.0),
            Step("clock", ("A", -3600.0), 4.0),
            Step("repeating", (0.1, 25.0), 1.0),
            Step("stop", (), 0.0),
            Step("write", ("L2", 2), 4.0),
        ),
        248,
    ),
    "an edit of a first deployment of which one source runs is edited again": History(
        (
            Step("update", (0, 1, True), 4.0),
            Step("edit", (EDITS.index(Move(operator="count", to="cloud", at="L2")),), 15.0),
            Step("edit", (EDITS.index(Move(operator="count", to="cloud", at="L2")),), 0.2),
        ),
        25,
    ),
    "a change is given up when a node was registered as reader, and the next one does not read there": History(
        (
            Step("cut", ("S1", "E2", 25.0), 1.0),
            Step("edit", (EDITS.index(Fuse(first="count", second="pass", to="cloud")),), 4.0),
            Step("write", ("L1", 3), 4.0),
            Step("update", (1, 0, True), 0.2),
        ),
        7500,
        locations=2,
    ),
}
