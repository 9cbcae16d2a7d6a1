"""A pool's aggregates that are computed from those of finer groups: live, with kills, they equal one batch run."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stateful import Aggregate
from headwater.reuse.pool import Pool
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, PAUSE, BoundedSource, batch_result, check_equivalent, compare
from tests.deployments.flows import LOCATIONS, SCHEMA, TWO_EDGES, rows

ZONES = Continuum.from_text(TWO_EDGES)


def counted(name: str, path: str, layer: str, *keys: str, where: str = "true", **values: str) -> Dataflow:
    """Aggregate the rows of ten seconds in a layer."""
    builder = hw.flow(name, locations=LOCATIONS)
    read = builder.read.json(path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    groups = read.where(where).to_layer(layer).group_by(hw.window("ts", "10 seconds"), *keys)
    groups.agg(**values).to_layer("cloud").write.memory("out")
    return builder.build()


@pytest.mark.long
def test_groups_served_from_finer_ones_are_exact(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = rows(60, seed=3)
    disturbed = made["L2"]
    disturbed[20:20], disturbed[40:40] = [KILL], [PAUSE, KILL]
    source = BoundedSource(tmp_path / "in", made, rows_per_file=10)
    everything = {"n": "count(*)", "s": "sum(id)", "c": "count(v)", "t": "sum(v)", "m": "max(v)"}
    flows = [
        counted("fine", source.path, "edge", "location", "k", **everything),
        counted("places", source.path, "cloud", "location", mean="avg(v)", rows="count(*)"),
        counted("all", source.path, "site", "location", most="max(v)"),
        counted("one", source.path, "cloud", "k", where="location = 'L2'", rows="count(*)", total="sum(id)"),
        counted("same", source.path, "cloud", "k", "location", total="sum(id)"),
    ]
    pool = Pool("commons")
    for flow in flows:
        pool = pool.submit(flow, "team")
        pool.check()
    aggregates = [o for o in pool.dataflow.operators if isinstance(o, Aggregate)]
    assert sum(o.window is not None and o.window.column == "window" for o in aggregates) == 3
    assert len(aggregates) == 4, "all are computed from one"
    run, decision = tmp_path / "run", pool.deployment(ZONES)
    outcome = check_equivalent(pool.dataflow, ZONES, endpoint, run, decision=decision, source=source)
    together = batch_result(endpoint.session(), pool.dataflow, ZONES)
    for flow in flows:
        sink = pool[flow.name].sinks["out"]
        assert not compare(batch_result(endpoint.session(), flow, ZONES)["out"], together[sink])
        assert outcome.rows[sink] > 3
