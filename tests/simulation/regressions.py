"""Histories that once broke a rule, made as short as possible; each found a defect that was mended."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.history import History, Step

REGRESSIONS: Mapping[str, History] = {
    "a stop reaches a new agent before it has adopted the query": History(
        (
            Step("pass", (), 4.0),
            Step("kill", ("agent S1",), 2.5),
            Step("stop", (), 15.0),
        )
    ),
}
