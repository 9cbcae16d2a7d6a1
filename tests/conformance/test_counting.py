"""The counts that units report of their operators' rows and of their state, over several batches of real rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.connectors.sources import can_be_malformed, source_frame, well_formed
from headwater.continuum.model import Continuum
from headwater.core.metrics import Progress
from headwater.dataflow import sources
from headwater.dataflow.graph import Dataflow
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build, one_unit
from headwater.query import compile
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import PAUSE, BoundedSource, batch_result, compare

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CONTINUUM = """
name: test
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
  E2: {layer: edge, parent: C1, locations: [L2]}
"""
LOCATIONS = ("L1", "L2")
BAD = 3


def reading(i: int, location: str) -> dict[str, object]:
    """Return a reading; every seventh does not pass the filter, and each has up to three tags."""
    ts = f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}Z"
    v = -1.0 if i % 7 == 0 else 1.0
    return {"id": i, "ts": ts, "k": f"{location}{i % 3}", "v": v, "tags": "abc"[: i % 4]}


def released(directory: Path) -> BoundedSource:
    """Write readings in three files per location, between which everything is processed."""
    rows: dict[str, list[object]] = {}
    for n, location in enumerate(LOCATIONS):
        made = [reading(i, location) for i in range(120)]
        bad = [{"id": f"no number {i}"} for i in range(BAD * n)]
        third = len(made) // 3
        rows[location] = [*made[:third], *bad, PAUSE, *made[third : 2 * third], PAUSE, *made[2 * third :]]
    return BoundedSource(directory, rows, rows_per_file=1000)  # type: ignore[arg-type]


def limits(directory: Path) -> str:
    """Write the stream that is joined: a limit for each key every ten seconds."""
    rows = [
        {"k": f"{location}{k}", "lt": f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}Z", "top": i}
        for i in range(0, 180, 10) for location in LOCATIONS for k in range(2)
    ]  # fmt: skip
    BoundedSource(directory, {"all": rows}, rows_per_file=1000).release_all()
    return str(directory / "all")


def flow(readings: str, top: str, *, split: bool) -> Dataflow:
    """Return a filter, an explode, a window, and a join unless the flow is ``split`` over two layers."""
    f = hw.flow("counted", locations=LOCATIONS)
    each = (
        f.read.json(readings, "id bigint, ts timestamp, k string, v double, tags string", location_as="at")
        .named("readings")
        .with_watermark("ts", "2 seconds")
        .named("timed")
        .where("v >= 0")
        .named("kept")
        .explode("filter(split(tags, ''), x -> x <> '')", "tag")
        .named("each")
    )
    if split:
        rows = each.to_layer("cloud").select("id", "ts", "k").named("fewer").where("id % 2 = 0").named("even")
    else:
        tops = f.read.json(top, "k string, lt timestamp, top bigint").named("tops")
        rows = each.join(tops.with_watermark("lt", "2 seconds"), on="k", within="4 seconds").named("both")
    rows.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)").named("counts").write.memory("out")
    return f.build()


def batch_counts(spark: SparkSession, dataflow: Dataflow) -> dict[str, int]:
    """Count every operator's rows in one batch over the whole input."""
    frames, counts = {}, {}
    for id_ in dataflow.order:
        operator = dataflow[id_]
        if isinstance(operator, sources.Source):
            places = LOCATIONS if operator.per_location else LOCATIONS[:1]
            parts = [source_frame(spark, operator, place, name=None) for place in places]
            if can_be_malformed(operator):
                parts = [well_formed(part, operator.schema()) for part in parts]
            frames[id_] = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        else:
            types = [dataflow.types[i] for i in operator.inputs]
            inputs = [frames[i] for i in operator.inputs]
            frames[id_] = compile.apply(operator, inputs, types, streaming=False)
        counts[id_] = frames[id_].count()
    return counts


def run(
    dataflow: Dataflow, readings: BoundedSource, endpoint: LocalEndpoint, directory: Path, *, split: bool
) -> tuple[pa.Table, list[Progress]]:
    """Run the flow over all batches; return the output, and the counts before the end and at it."""
    continuum = Continuum.from_text(CONTINUUM)
    plan = build(dataflow, continuum, None if split else one_unit(dataflow, continuum))
    deployment = LocalRun(plan, directory, endpoint, settings(measure=True))
    deployment.start()
    try:
        for _ in readings.release():
            deployment.settle()
        seen = [deployment.progress()]
        deployment.drain()
        return deployment.sink_rows("out"), [*seen, deployment.progress()]
    finally:
        deployment.stop()


def settings(*, measure: bool) -> UnitSettings:
    channel = ChannelSettings(fsync=False)
    return UnitSettings(trigger="100 milliseconds", channel=channel, measure=measure)


@pytest.mark.parametrize(
    "split", [pytest.param(False, id="one unit", marks=pytest.mark.long), pytest.param(True, id="two layers")]
)
def test_rows_of_operators_are_those_of_a_batch(split: bool, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    readings = released(tmp_path / "in")
    dataflow = flow(readings.path, limits(tmp_path / "tops"), split=split)
    table, (before, after) = run(dataflow, readings, endpoint, tmp_path / "run", split=split)
    wanted = batch_counts(endpoint.session(), dataflow)
    assert not compare(batch_result(endpoint.session(), dataflow, Continuum.from_text(CONTINUUM))["out"], table)

    taken: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for unit in after.units:
        assert unit.batches >= 3
        assert unit.busy_s > 0
        for seen in unit.operators:
            assert seen.rows_in is not None and seen.rows_out is not None, seen
            taken[seen.operator] += seen.rows_in
            given[seen.operator] += seen.rows_out
    assert dict(given) == wanted
    for operator in dataflow.operators:
        if operator.inputs:
            assert taken[operator.id] == sum(wanted[i] for i in operator.inputs), operator.id
    assert taken["readings"] == given["readings"] + BAD
    if not split:
        (unit,) = after.units
        by_location = {o.location: (o.rows_in, o.rows_out) for o in unit.operators if o.location}
        assert by_location == {"L1": (120, 120), "L2": (120 + BAD, 120)}
    # The last window and the join give up their state only when the input has ended.
    assert sum(u.state_rows for u in before.units) > 0
    assert sum(u.state_bytes for u in before.units) > 0
    assert sum(u.state_rows for u in after.units) == 0


@pytest.mark.long
def test_state_goes_on_whether_measured_or_not(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    readings = released(tmp_path / "in")
    dataflow = flow(readings.path, limits(tmp_path / "tops"), split=False)
    continuum = Continuum.from_text(CONTINUUM)
    plan = build(dataflow, continuum, one_unit(dataflow, continuum))
    deployment = LocalRun(plan, tmp_path / "run", endpoint, settings(measure=False))
    deployment.start()
    try:
        for turn, _ in enumerate(readings.release()):
            deployment.settle()
            (unit,) = deployment.progress().units
            assert bool(unit.operators) == (turn % 2 == 1)
            deployment.stop()
            deployment = LocalRun(plan, tmp_path / "run", endpoint, settings(measure=turn % 2 == 0))
            deployment.start()
        deployment.drain()
        table = deployment.sink_rows("out")
    finally:
        deployment.stop()
    assert not compare(batch_result(endpoint.session(), dataflow, continuum)["out"], table)
