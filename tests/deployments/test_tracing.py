"""Traces of a deployment with an agent and a Spark in each of two zones, received over OTLP."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, ZoneRun, batch_result, compare
from tests.collector import Received, collecting
from tests.deployments.flows import SCHEMA, rows

ZONES = "layers: [edge, cloud]\nzones: {C1: {layer: cloud}, E1: {layer: edge, parent: C1, locations: [L1]}}"


@pytest.mark.long
def test_the_way_of_each_row_is_in_a_trace(
    endpoint: LocalEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BoundedSource(tmp_path / "in", {"L1": rows(60, seed=11)["L1"]}, rows_per_file=15)
    f = hw.flow("traced", locations=["L1"])
    low = f.read.json(source.path, SCHEMA, location_as="location").where("v IS NOT NULL")
    low.to_layer("cloud").where("k IS NOT NULL").write.memory("out")
    plan = build(f.build(), Continuum.from_text(ZONES))
    edge, cloud = (next(u.id for u in plan.units if u.zone == zone) for zone in ("E1", "C1"))
    with collecting() as (collector, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with ZoneRun(plan, tmp_path / "home") as run:
            run.start()
            for _ in source.release():
                run.settle()
            run.finish()
            found = run.rows()
        spans = collector.spans  # the agents have ended, and have sent all that waited
    assert not compare(batch_result(endpoint.session(), plan.dataflow, plan.continuum)["out"], found["out"])
    by_id = {span.span: span for span in spans}
    assert len(by_id) == len(spans), "each span comes once"
    called = {name: [s for s in spans if s.name == name] for name in {s.name for s in spans}}
    relays = [s for name, those in called.items() if name.startswith("relay ") for s in those]
    read, sent, joined = called[f"read {edge}"], called[f"publish {edge}"], called[f"batch {cloud}"]

    def way(span: Received) -> list[Received]:
        found = [span]
        while found[-1].parent:
            assert by_id[found[-1].parent].trace == span.trace
            found.append(by_id[found[-1].parent])
        return found[::-1]

    assert len(read) == len({s.trace for s in read}) > 1, "a trace for each batch of the source"
    for span in joined:
        names = [s.name for s in way(span)]
        assert names == [f"read {edge}", f"batch {edge}", f"publish {edge}", relays[0].name, f"batch {cloud}"]
        for first, then in zip(way(span), way(span)[1:], strict=False):
            assert first.begun <= then.begun, f"{first.name} begins before {then.name}"
        assert [s.attributes.get("headwater.zone") for s in (way(span)[0], span)] == ["E1", "C1"]
    # All rows that left the edge came to the cloud in a batch that knows where they come from.
    assert {s.span for s in sent} == {s.parent for s in relays}
    assert {s.span for s in relays} == {s.parent for s in joined} | {link for s in joined for link in s.links}
    assert sum(s.attributes["headwater.rows"] for s in joined) == found["out"].num_rows
    assert {s.service for s in spans} == {"headwater-agent"} and not any(s.error for s in spans)
