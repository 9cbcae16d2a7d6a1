"""A unit is compiled without Spark's help, and checked with it, on a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.connect.client import SparkConnectClient

import headwater as hw
from headwater.agent.units import Units
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.dataflow.builder import DataflowBuilder
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.spec import UnitSpec, spec_of
from headwater.query import corrupt
from headwater.spark.endpoint import LocalEndpoint

CONTINUUM = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 2, memory: 1GiB}}}
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
""")


@pytest.fixture
def units(endpoint: LocalEndpoint, tmp_path: Path) -> Units:
    return Units(Layout(tmp_path / "zone"), endpoint, UnitSettings())


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def total(state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return state + row["v"], {"id": row["id"], "total": state + row["v"]}


def flow(place: Path) -> DataflowBuilder:
    """Build a dataflow with text, functions over batches, scans, windows, and several outputs on either side."""
    (place / "in").mkdir()
    builder = hw.flow("compiled", locations=["L1"])
    rows = builder.read.json(str(place / "in"), "id bigint, v bigint, ts timestamp, vs array<bigint>")
    read = rows.map_batches(same, "id bigint, v bigint, ts timestamp, vs array<bigint>")
    read.explode("vs", "w").select("id", "w").write.json(str(place / "exploded"))
    timed = read.select("id", "v", "ts").with_watermark("ts", "1 second")
    totals = timed.scan(total, "id bigint, total bigint", keys="id", order_by="ts", initial=0)
    totals.write.json(str(place / "totals"))
    above = timed.where("v > 1").to_layer("cloud")
    above.map_batches(same, "id bigint, v bigint, ts timestamp").write.json(str(place / "above"))
    above.group_by(hw.window("ts", "1 minute"), "id").agg(n="count(*)").write.json(str(place / "counts"))
    return builder


def specs(builder: DataflowBuilder) -> list[UnitSpec]:
    plan = build(builder.build(), CONTINUUM)
    return [spec_of(plan, unit.id) for unit in plan.units]


def test_compiling_asks_spark_nothing(units: Units, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    analyze = SparkConnectClient._analyze

    def counted(client: SparkConnectClient, method: str, **arguments: Any) -> Any:
        asked.append(method)
        return analyze(client, method, **arguments)

    monkeypatch.setattr(SparkConnectClient, "_analyze", counted)
    found = specs(flow(tmp_path))
    assert len(found) > 1
    for spec in found:
        units.compile(spec)
        assert asked == [], spec.id
        units.check(spec)
        assert asked == ["is_streaming"], spec.id
        asked.clear()


def test_a_check_raises_the_errors_of_spark(units: Units, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    builder = hw.flow("refused", locations=["L1"])
    builder.read.json(str(tmp_path / "in"), "id bigint").where("id > 1").write.json(str(tmp_path / "out"))
    (spec,) = specs(builder)
    monkeypatch.setattr(corrupt, "expression", lambda text: F.expr("no_such_function(id)"))
    units.compile(spec)
    with pytest.raises(HeadwaterError, match="no_such_function"):
        units.check(spec)
