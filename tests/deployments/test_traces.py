"""Traces of a real deployment over two zones, as a collector receives them from its controller and agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.testing import BoundedSource
from tests.collector import Received, collecting
from tests.deployments.agents import AgentProcess
from tests.deployments.flows import rows
from tests.deployments.test_handover import written
from tests.deployments.test_upgrades import FLOW, SITE, continuum, controller
from tests.deployments.versions import ROOT, run


def way_of(span: Received, spans: dict[str, Received]) -> list[str]:
    """Return the names of a span and its ancestors, the first one first."""
    names = [span.name]
    while span.parent:
        assert spans[span.parent].trace == span.trace
        span = spans[span.parent]
        names.insert(0, span.name)
    return names


@pytest.mark.long
def test_rows_and_changes_are_traced_over_zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path.resolve()
    with collecting() as (collector, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        options = ("--state-store", str(place / "state"), "--trigger", "100 milliseconds")
        agents = {zone: AgentProcess(place / "agents", zone, SITE, *options) for zone in ("C1", "E1")}
        source = BoundedSource(place / "in", {"L1": rows(60, seed=31)["L1"]}, rows_per_file=15)
        flow, zones = place / "flow.py", place / "zones.yaml"
        flow.write_text(FLOW.format(read=source.path, out=str(place / "out")))
        zones.write_text(continuum(agents))

        def headwater(*command: str) -> str:
            return run(ROOT, "-m", "headwater", *command, "--store", str(place / "store.db"), cwd=place)

        try:
            for agent in agents.values():
                agent.start()
            with controller(ROOT, place):
                headwater("apply", str(flow), "-c", str(zones), "--yes", "--wait")
                source.release_all()
                headwater("move", "rising", "--to", "cloud", "--yes", "--wait")
                headwater("stop", "moving", "--finish", "--wait")
        finally:
            for agent in agents.values():
                agent.end()
        assert written(place / "out").num_rows > 5
        spans = {s.span: s for s in collector.spans}
    assert {s.service for s in spans.values()} == {"headwater-agent", "headwater-controller"}
    changes = [s for s in spans.values() if s.name == "change moving"]
    assert [s.attributes["headwater.goal"] for s in sorted(changes, key=lambda s: s.begun)] == ["run", "run", "finish"]
    for change in changes:
        own = [s for s in spans.values() if s.trace == change.trace]
        assert all(s is change or s.parent in spans for s in own)
        calls = [s for s in own if s.kind == 3]
        answers = {s.parent: s for s in own if s.kind == 2}
        assert calls and all(answers[s.span].service == "headwater-agent" for s in calls)
        assert all(s.begun >= change.begun - 1e-3 for s in own if s.kind == 3)
    ways = [way_of(s, spans) for s in spans.values() if s.name.startswith("publish") and "@C1" in s.name]
    zones_of = [[name.partition(" ")[0] for name in way] for way in ways]
    assert ["read", "batch", "publish", "relay", "batch", "publish"] in zones_of, zones_of
