"""Count windows by keys of numbers some of which are NULL: pandas would make them floating point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare

CONTINUUM = Continuum.from_text("""
name: one
layers: [cloud]
zones:
  C1: {layer: cloud, locations: [L1]}
""")
LARGE = 2**53
KEYS: tuple[Any, ...] = (None, 1, LARGE, LARGE + 1, -7)


def packed(path: str) -> Dataflow:
    """Return windows over numbers, whose rows are packed by a key that is sometimes NULL."""
    builder = hw.flow("keys", locations=["L1"])
    read = builder.read.json(path, "id bigint, ts timestamp, k bigint, d double, v bigint")
    counted = read.count_window(4, keys="k", order_by="id", slide=2).agg(first="first(id)", n="count(v)", mean="avg(d)")
    counted.write.memory("out")
    return builder.build()


def flow(path: str, *, by_time: bool) -> Dataflow:
    builder = hw.flow("keys", locations=["L1"])
    read = builder.read.json(path, "id bigint, ts timestamp, k bigint, d double, v bigint").named("read")
    rows = read.with_watermark("ts", "1 second") if by_time else read
    order = ["ts", "id"] if by_time else ["id"]
    counted = rows.count_window(4, keys=["k", "d"], order_by=order, slide=2).agg(
        first="first(id)",
        total="sum(v)",
        wholes="collect_list(v)",
        reals="collect_list(IF(v > 1000000000000000000, CAST('NaN' AS double), d))",
        times="collect_list(ts)",
        days="collect_list(to_date(ts))",
        small="collect_list(CAST(id % 100 AS tinyint))",
    )
    counted.write.memory("out")
    return builder.build()


@pytest.mark.parametrize(
    "kind", ["by event time", *(pytest.param(k, marks=pytest.mark.long) for k in ("in order of arrival", "packed"))]
)
def test_keys_with_nulls_are_those_of_a_batch(kind: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    rows = [
        {
            "id": n, "ts": f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z", "k": KEYS[n * 7 % 5],
            "d": None if n % 3 else 0.5, "v": n * LARGE if n % 4 else None,
        }
        for n in range(240)
    ]  # fmt: skip
    source = BoundedSource(tmp_path / "in", {"L1": rows}, rows_per_file=60)
    dataflow = packed(source.path) if kind == "packed" else flow(source.path, by_time=kind == "by event time")
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    deployment = LocalRun(build(dataflow, CONTINUUM), tmp_path / "run", endpoint, settings)
    deployment.start()
    try:
        for _ in source.release():
            deployment.settle()
        deployment.drain()
        found = deployment.sink_rows("out")
    finally:
        deployment.stop()
    wanted = batch_result(endpoint.session(), dataflow, CONTINUUM)["out"]
    assert wanted.num_rows > 80
    assert not compare(wanted, found), compare(wanted, found)
