"""Windows of a number of rows in the order of arrival: packed rows, and state from before rows were packed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.query import countwindow
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare

CONTINUUM = Continuum.from_text("""
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [L1]}
""")
SCHEMA = "id bigint, j int, k string, v bigint, w double, x float"


def flow(path: Path) -> Dataflow:
    """Return windows by several keys, by one that is never NULL, and without a key."""
    builder = hw.flow("counted", locations=["L1"])
    read = builder.read.json(f"{path}/{{location}}", SCHEMA, location_as="location")
    by_keys = read.count_window(7, 3, keys=["location", "k", "j"], order_by=["id"])
    by_keys.agg(
        first="first(id)", n="count(v)", v="sum(v)", w="avg(w)", most="max(x)", least="min(w)", last="last(v)"
    ).write.memory("by_keys")
    known = read.where("j IS NOT NULL").count_window(4, keys="j", order_by=["id"])
    known.agg(first="first(id)", v="max(v)", w="sum(w)").write.memory("known")
    read.count_window(10, order_by="id").agg(first="first(id)", v="sum(v)", w="min(w)").write.memory("all")
    return builder.build()


def write(path: Path, first: int, count: int) -> None:
    """Write a file of rows; any of their values but the number of the row may be NULL."""
    rows = []
    for i in range(first, first + count):
        row = {"id": i, "j": i % 3, "k": f"k{i % 4}", "v": i * 2**40, "w": i / 8, "x": i / 4}
        rows.append(
            {name: None if (i + n) % 5 == 0 and n > 0 else value for n, (name, value) in enumerate(row.items())}
        )
    path.joinpath("L1").mkdir(parents=True, exist_ok=True)
    path.joinpath("L1", f"{first:06d}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.long
def test_windows_continue_with_state_from_before_rows_were_packed(
    endpoint: LocalEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    plan = build(flow(source), CONTINUUM)
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    write(source, 0, 101)
    with monkeypatch.context() as before:
        before.setattr(countwindow, "_packed_kinds", lambda *_: ())
        deployment = LocalRun(plan, tmp_path / "run", endpoint, settings)
        deployment.start()
        try:
            deployment.settle()
        finally:
            deployment.stop()
    write(source, 101, 150)
    deployment = LocalRun(plan, tmp_path / "run", endpoint, settings)
    deployment.start()
    try:
        deployment.settle()
        write(source, 251, 60)
        deployment.drain()
        wanted = batch_result(endpoint.session(), plan.dataflow, CONTINUUM)
        for sink, table in wanted.items():
            assert table.num_rows > 10
            assert not (difference := compare(table, deployment.sink_rows(sink))), (sink, difference)
    finally:
        deployment.stop()
